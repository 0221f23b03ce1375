package alert_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/alert"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

// nasty is a message whose names hold the markup of every receiver.
var nasty = alert.Notice{
	ID: "f-1", Kind: alert.Firing, Level: alert.Critical, Rule: alert.RuleDead,
	Subject: "<at user_id=\"all\">x</at> <!channel> <@all> @all *b* [a](http://evil)",
	Service: "shop", Environment: "production", Says: "3 deliveries of <b>`x`</b>\n# are DEAD ![i](http://evil)", Count: 3,
	Since:  time.Date(2026, 11, 21, 8, 0, 0, 0, time.UTC),
	Remedy: "retry or skip them", Link: "https://ops.example/dead?consumer=A&status=DEAD", Runbook: "https://wiki.example/operations#dead",
}

// call is what a receiver got.
type call struct {
	req  *http.Request
	body []byte
}

// receiver answers with a status and a text, and keeps what it got.
func receiver(t *testing.T, status int, answer string) (url string, calls func() []call) {
	t.Helper()
	got := make(chan call, 100)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil {
			got <- call{r, body}
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, answer)
	}))
	t.Cleanup(server.Close)
	return server.URL + "/robot/send?access_token=t0ken", func() []call {
		var out []call
		for len(got) > 0 {
			out = append(out, <-got)
		}
		return out
	}
}

func hook(t *testing.T, url string, format alert.Format, secret string) alert.Sink {
	t.Helper()
	s, err := alert.Webhook(alert.WebhookConfig{URL: url, Format: format, Secret: secret})
	require.NoError(t, err)
	return s
}

func sum(key, text string) []byte {
	h := hmac.New(sha256.New, []byte(key))
	_, _ = h.Write([]byte(text))
	return h.Sum(nil)
}

// checks verify the call as each receiver does, by its own documentation.
func checks() map[alert.Format]struct {
	secret, answer string
	check          func(t *testing.T, c call, body map[string]any)
} {
	type entry = struct {
		secret, answer string
		check          func(t *testing.T, c call, body map[string]any)
	}
	at := func(v any, path ...string) any {
		for _, p := range path {
			v = v.(map[string]any)[p]
		}
		return v
	}
	fresh := func(t *testing.T, stamp string, unit time.Duration) {
		t.Helper()
		n, err := strconv.ParseInt(stamp, 10, 64)
		require.NoError(t, err)
		require.WithinDuration(t, time.Now(), time.Unix(0, n*int64(unit)), time.Minute)
	}
	markup := func(t *testing.T, say string) {
		t.Helper()
		for _, s := range []string{"<", "](http://evil", "@all", "`", "*b*", "\n# "} {
			require.NotContains(t, say, s)
		}
		for _, s := range []string{
			"CRITICAL", "production shop", "dead", "3 deliveries", "2026-11-21 08:00:00 UTC", "**How many**: 3",
			"retry or skip them", "[Open](https://ops.example/dead?consumer=A&status=DEAD)", "[Runbook](https://wiki.example/operations#dead)",
		} {
			require.Contains(t, say, s)
		}
	}
	return map[alert.Format]entry{
		alert.JSON: {secret: "s3cret", check: func(t *testing.T, c call, body map[string]any) {
			t.Helper()
			stamp := c.req.Header.Get(alert.TimestampHeader)
			fresh(t, stamp, time.Second)
			require.Equal(t, "v1="+hex.EncodeToString(sum("s3cret", stamp+"."+string(c.body))), c.req.Header.Get(alert.SignatureHeader))
			require.NoError(t, alert.VerifyWebhook("s3cret", c.req.Header, c.body))
			require.ErrorIs(t, alert.VerifyWebhook("s3cret!", c.req.Header, c.body), alert.ErrSignature)
			require.Equal(t, "f-1", c.req.Header.Get(alert.IDHeader))
			require.Equal(t, "f-1", body["id"], "signed with the body")
			require.Equal(t, "dead", body["rule"])
			require.Equal(t, nasty.Says, body["says"])
			require.Equal(t, nasty.Link, body["link"])
		}},
		alert.DingTalk: {secret: "SEC+/=1", answer: `{"errcode":0,"errmsg":"ok"}`, check: func(t *testing.T, c call, body map[string]any) {
			t.Helper()
			q := c.req.URL.Query()
			fresh(t, q.Get("timestamp"), time.Millisecond)
			require.Equal(t, base64.StdEncoding.EncodeToString(sum("SEC+/=1", q.Get("timestamp")+"\nSEC+/=1")), q.Get("sign"))
			require.NotContains(t, c.req.URL.RawQuery, "+", "escaped for a URL")
			require.Equal(t, "t0ken", q.Get("access_token"))
			require.Equal(t, "markdown", body["msgtype"])
			require.NotEmpty(t, at(body, "markdown", "title"))
			markup(t, at(body, "markdown", "text").(string))
		}},
		alert.WeCom: {answer: `{"errcode":0,"errmsg":"ok"}`, check: func(t *testing.T, c call, body map[string]any) {
			t.Helper()
			require.Equal(t, "markdown", body["msgtype"])
			say := at(body, "markdown", "content").(string)
			markup(t, say)
			require.LessOrEqual(t, len(say), 4096)
			require.Equal(t, "t0ken", c.req.URL.Query().Get("access_token"))
		}},
		alert.Feishu: {secret: "feishu", answer: `{"code":0,"msg":"success"}`, check: func(t *testing.T, c call, body map[string]any) {
			t.Helper()
			stamp := body["timestamp"].(string)
			fresh(t, stamp, time.Second)
			require.Equal(t, base64.StdEncoding.EncodeToString(sum(stamp+"\nfeishu", "")), body["sign"])
			require.Equal(t, "interactive", body["msg_type"])
			require.Equal(t, "red", at(body, "card", "header", "template"))
			require.NotContains(t, string(c.body), "lark_md", "nothing is markup")
			require.Contains(t, string(c.body), "3 deliveries")
			require.Contains(t, string(c.body), "How many: 3")
		}},
		alert.Slack: {answer: "ok", check: func(t *testing.T, c call, body map[string]any) {
			t.Helper()
			require.NotContains(t, body["text"], "<!channel>")
			require.Contains(t, body["text"], "&lt;!channel&gt;")
			blocks := body["blocks"].([]any)
			require.Equal(t, "header", at(blocks[0], "type"))
			for _, b := range blocks[:len(blocks)-1] {
				require.Equal(t, "plain_text", at(b, "text", "type"))
			}
			require.Equal(t, "<https://ops.example/dead?consumer=A&amp;status=DEAD|Open>  <https://wiki.example/operations#dead|Runbook>",
				at(blocks[len(blocks)-1], "text", "text"))
			require.NotEmpty(t, c.body)
		}},
	}
}

// Every receiver gets what it expects, signed as it wants it, with nothing in it that it would take
// for markup.
func TestEveryReceiverGetsWhatItExpects(t *testing.T) {
	t.Parallel()
	for format, c := range checks() {
		t.Run(string(format), func(t *testing.T) {
			t.Parallel()
			url, calls := receiver(t, http.StatusOK, c.answer)
			require.NoError(t, hook(t, url, format, c.secret).Send(t.Context(), nasty))
			got := calls()
			require.Len(t, got, 1)
			require.Equal(t, http.MethodPost, got[0].req.Method)
			require.Contains(t, got[0].req.Header.Get("Content-Type"), "application/json")
			var body map[string]any
			require.NoError(t, json.NewDecoder(bytes.NewReader(got[0].body)).Decode(&body))
			c.check(t, got[0], body)
			for kind := range map[alert.Kind]bool{alert.Resolved: true, alert.Escalated: true, alert.Reminder: true} { // the others can be sent too
				n := nasty
				n.Kind, n.Link, n.Runbook, n.Says = kind, "", "docs/operations.md#dead", strings.Repeat("长", 5000)
				require.NoError(t, hook(t, url, format, c.secret).Send(t.Context(), n))
				text := string(calls()[0].body)
				if format == alert.WeCom {
					require.NoError(t, json.Unmarshal([]byte(text), &body))
					require.LessOrEqual(t, len(body["markdown"].(map[string]any)["content"].(string)), 4096)
				}
			}
		})
	}
}

// Whatever is not clearly taken is a failure, and says nothing of the URL, which holds the token.
func TestWhatIsNotTakenIsAFailure(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		format alert.Format
		status int
		answer string
		says   string
	}{
		"500":             {alert.JSON, 500, "", "500 Internal Server Error"},
		"redirect":        {alert.JSON, 302, "", "302 Found"},
		"slack":           {alert.Slack, 404, "no_service", "404"},
		"dingtalk sign":   {alert.DingTalk, 200, `{"errcode":310000,"errmsg":"sign not match"}`, "sign not match"},
		"dingtalk silent": {alert.DingTalk, 200, ``, "not JSON"},
		"wecom":           {alert.WeCom, 200, `{"errcode":45009,"errmsg":"api freq out of limit"}`, "out of limit"},
		"feishu":          {alert.Feishu, 200, `{"code":19021,"msg":"sign match fail"}`, "sign match fail"},
		"feishu odd":      {alert.Feishu, 200, `{}`, "code"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, _ := receiver(t, c.status, c.answer)
			err := hook(t, url, c.format, "").Send(t.Context(), nasty)
			require.ErrorContains(t, err, c.says)
			require.NotContains(t, err.Error(), "t0ken")
		})
	}
	err := hook(t, "http://127.0.0.1:1/send?access_token=t0ken", alert.JSON, "").Send(t.Context(), nasty)
	require.ErrorContains(t, err, "call 127.0.0.1:1")
	require.NotContains(t, err.Error(), "t0ken")
}

func TestWebhookMistakes(t *testing.T) {
	t.Parallel()
	for says, cfg := range map[string]alert.WebhookConfig{
		"URL":                        {},
		"must be an address":         {URL: "ftp://x"},
		"must be json, dingtalk":     {URL: "http://x", Format: "teams"},
		"slack knows no signatures":  {URL: "http://x", Format: alert.Slack, Secret: "s"},
		"begins with http:// or htt": {URL: "http://x y/%zz?token=t0ken"},
	} {
		_, err := alert.Webhook(cfg)
		require.ErrorContains(t, err, says)
		require.NotContains(t, err.Error(), "t0ken")
	}
}

// A receiver that answers errors or nothing at all for a while gets the message when it is well again.
func TestAReceiverThatWasIllGetsTheMessage(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		modes := []string{"500", "slow", "refuses", "well"}
		var mu sync.Mutex
		var ids []string
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			mode := modes[min(len(ids), 3)]
			ids = append(ids, mode)
			mu.Unlock()
			switch mode {
			case "500":
				w.WriteHeader(http.StatusInternalServerError)
			case "slow":
				_, _ = io.Copy(io.Discard, r.Body)
				<-r.Context().Done()
			case "refuses":
				_, _ = io.WriteString(w, `{"errcode":310000}`)
			default:
				_, _ = io.WriteString(w, `{"errcode":0}`)
			}
		}))
		defer server.Close()
		var well inbox
		a := newAlerter(t, db, alert.Config{Routes: to(hook(t, server.URL, alert.DingTalk, "s"), &well), SendTimeout: 2 * time.Second})
		delivery(t, db, "DEAD", "A", "order.paid", 10, time.Second)
		for i := range 3 {
			r := look(t, a)
			require.Equal(t, int64(1), r.Failed, i)
			pass(t, db, 20*time.Minute)
		}
		require.Equal(t, alert.Report{Found: 1, Sent: 1}, look(t, a))
		mu.Lock()
		defer mu.Unlock()
		require.Equal(t, modes, ids)
		require.Len(t, well.got(), 1)
	})
}

// The log gets one line per message, at the level of its urgency.
func TestLogSink(t *testing.T) {
	t.Parallel()
	for want, n := range map[string]alert.Notice{
		`level=ERROR msg=alert kind=FIRING`:  {Kind: alert.Firing, Level: alert.Critical},
		`level=WARN msg=alert kind=REMINDER`: {Kind: alert.Reminder, Level: alert.Warn},
		`level=INFO msg=alert kind=RESOLVED`: {Kind: alert.Resolved, Level: alert.Critical},
	} {
		var out bytes.Buffer
		require.NoError(t, alert.Log(logger(&out)).Send(context.Background(), n))
		require.Contains(t, out.String(), want)
	}
	require.NoError(t, alert.Log(nil).Send(t.Context(), alert.Notice{Kind: alert.Resolved}))
}
