package alert

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Format is what a webhook expects.
type Format string

// The formats of webhooks.
const (
	JSON     Format = "json"     // the Notice itself, for services of your own
	DingTalk Format = "dingtalk" // a group robot, with "sign" as its security setting
	WeCom    Format = "wecom"    // a group robot of WeCom (WeChat Work)
	Feishu   Format = "feishu"   // a custom bot of Feishu or Lark, with signature verification
	Slack    Format = "slack"    // an incoming webhook
)

// The headers that sign a message in the format [JSON].
const (
	// TimestampHeader is when it was signed, in seconds since the epoch.
	TimestampHeader = "X-Bluecone-Timestamp"
	// SignatureHeader is "v1=" and, in hexadecimal, the HMAC-SHA256 of the timestamp, a point and the
	// body under the secret.
	SignatureHeader = "X-Bluecone-Signature"
	// IDHeader is Notice.ID, the same whenever the message is sent again.
	IDHeader = "X-Bluecone-Id"
)

// WebhookConfig configures a [Webhook].
type WebhookConfig struct {
	// URL is where messages go. It often holds a token, so it is never logged. Default: none, it must be set.
	URL string
	// Format is what the receiver expects. Default: JSON.
	Format Format
	// Secret signs the messages of JSON, DingTalk and Feishu; the others have no signatures.
	// Default: none, messages are not signed.
	Secret string
	// Client makes the calls. Redirects are never followed. Default: one of its own.
	Client *http.Client
}

func (c WebhookConfig) validate() error {
	var errs []error
	u, err := url.Parse(c.URL)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		errs = append(errs, errors.New("alert.WebhookConfig.URL must be an address that begins with http:// or https://"))
	}
	if _, ok := formats()[c.Format]; c.Format != "" && !ok {
		errs = append(errs, fmt.Errorf("alert.WebhookConfig.Format is %q: it must be json, dingtalk, wecom, feishu or slack", c.Format))
	}
	if c.Secret != "" && (c.Format == WeCom || c.Format == Slack) {
		errs = append(errs, fmt.Errorf("alert.WebhookConfig.Secret: %s knows no signatures", c.Format))
	}
	return errors.Join(errs...)
}

// webhook posts messages.
type webhook struct {
	cfg    WebhookConfig
	url    *url.URL
	format format
	client *http.Client
}

// Webhook is a sink that posts every message to a URL.
func Webhook(cfg WebhookConfig) (Sink, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if cfg.Format == "" {
		cfg.Format = JSON
	}
	client := &http.Client{}
	if cfg.Client != nil {
		*client = *cfg.Client
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	u, err := url.Parse(cfg.URL)
	if err != nil {
		return nil, errors.New("alert.WebhookConfig.URL is no address") // the text of err has it
	}
	return &webhook{cfg: cfg, url: u, format: formats()[cfg.Format], client: client}, nil
}

// Send posts a message, and reads whether it has been accepted: robots refuse with status 200.
func (w *webhook) Send(ctx context.Context, n Notice) error {
	req, err := w.request(ctx, n)
	if err != nil {
		return err
	}
	res, err := w.client.Do(req)
	if err != nil {
		if bare, ok := errors.AsType[*url.Error](err); ok { // its text has the URL, and so the token
			err = bare.Err
		}
		return fmt.Errorf("call %s: %w", w.url.Host, err)
	}
	defer res.Body.Close()
	said, err := io.ReadAll(io.LimitReader(res.Body, mostAnswer))
	switch {
	case err != nil:
		return fmt.Errorf("read the answer of %s: %w", w.url.Host, err)
	case res.StatusCode < 200 || res.StatusCode > 299:
		return fmt.Errorf("%s answers %s", w.url.Host, res.Status)
	case w.format.refused == nil:
		return nil
	}
	if why := w.format.refused(said); why != "" {
		return fmt.Errorf("%s refuses: %s", w.url.Host, why)
	}
	return nil
}

func (w *webhook) request(ctx context.Context, n Notice) (*http.Request, error) {
	now := time.Now()
	body, err := json.Marshal(w.format.body(n, w.cfg.Secret, now))
	if err != nil {
		return nil, fmt.Errorf("encode the message: %w", err)
	}
	target := *w.url
	if w.format.query != nil && w.cfg.Secret != "" {
		query := target.Query()
		w.format.query(query, w.cfg.Secret, now)
		target.RawQuery = query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target.String(), bytes.NewReader(body))
	if err != nil {
		return nil, errors.New("the URL of the webhook cannot be called") // the text of err has it
	}
	req.Header.Set("Content-Type", "application/json; charset=utf-8")
	if w.cfg.Format == JSON {
		stamp := strconv.FormatInt(now.Unix(), 10)
		req.Header.Set(IDHeader, n.ID)
		req.Header.Set(TimestampHeader, stamp)
		if w.cfg.Secret != "" {
			req.Header.Set(SignatureHeader, signature(w.cfg.Secret, stamp, body))
		}
	}
	return req, nil
}

func mac(key, text []byte) []byte {
	h := hmac.New(sha256.New, key)
	_, _ = h.Write(text) // never fails
	return h.Sum(nil)
}

func signed(key, text string) string {
	return base64.StdEncoding.EncodeToString(mac([]byte(key), []byte(text)))
}
