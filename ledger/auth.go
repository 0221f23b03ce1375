package ledger

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
)

// Caller is who calls, and what it may do.
type Caller struct {
	Name    string   `json:"name"`
	Publish []string `json:"publish"` // event types, such as "order.paid" or "order.*"
	Consume []string `json:"consume"` // consumers, by their names
	Rate    float64  `json:"rate"`    // calls a second that one instance answers; 0 means 1,000
}

// MayPublish reports whether the caller may publish events of a type.
func (c Caller) MayPublish(eventType string) bool { return matches(c.Publish, eventType) }

// MayConsume reports whether the caller may act as a consumer.
func (c Caller) MayConsume(consumer string) bool { return matches(c.Consume, consumer) }

func matches(patterns []string, name string) bool {
	for _, p := range patterns {
		if ok, err := path.Match(p, name); err == nil && ok {
			return true
		}
	}
	return false
}

// Authorizer says who a request is from. It returns an error if it does not know: the call is refused as unauthenticated, and the
// error is not shown to the caller.
type Authorizer func(r *http.Request) (Caller, error)

// Anybody is an [Authorizer] that lets everybody do everything: for tests, and for a service that only this machine reaches.
func Anybody(*http.Request) (Caller, error) {
	return Caller{Name: "anybody", Publish: []string{"*"}, Consume: []string{"*"}}, nil
}

// Tokens are bearer tokens from a file, which is read again when it changes. It is safe for concurrent use.
type Tokens struct {
	file   string
	logger *slog.Logger

	mu      sync.RWMutex
	callers map[[sha256.Size]byte]Caller // by the hash of the token: comparing it tells nothing of the token
	byName  map[string]Caller
	read    fileState
}

type fileState struct {
	at   time.Time
	size int64
}

// ReadTokens reads the callers from a file of JSON, {"<token>": {"name": …, "publish": ["order.*"], "consume": ["PointsConsumer"]}}. It
// returns an error that names what is wrong in it, but never a token.
func ReadTokens(file string, logger *slog.Logger) (*Tokens, error) {
	t := &Tokens{file: file, logger: logger}
	return t, t.load()
}

// Watch reads the file again within seconds of a change, until ctx ends. A file that cannot be read, or is wrong, is reported, and
// the tokens of before stay.
func (t *Tokens) Watch(ctx context.Context) {
	tick := time.NewTicker(2 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if !t.hasChanged() {
			continue
		}
		if err := t.load(); err != nil {
			t.logger.ErrorContext(ctx, "the tokens file has changed and cannot be used; the tokens of before stay", "error", err)
		}
	}
}

func (t *Tokens) hasChanged() bool {
	now, err := stateOf(t.file)
	t.mu.RLock()
	defer t.mu.RUnlock()
	return err == nil && now != t.read
}

func stateOf(file string) (fileState, error) {
	info, err := os.Stat(file)
	if err != nil {
		return fileState{}, err
	}
	return fileState{at: info.ModTime(), size: info.Size()}, nil
}

func (t *Tokens) load() error {
	state, err := stateOf(t.file)
	if err != nil {
		return fmt.Errorf("ledger: tokens: %w", err)
	}
	data, err := os.ReadFile(t.file)
	if err != nil {
		return fmt.Errorf("ledger: tokens: %w", err)
	}
	callers, err := parseTokens(data)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.read = state // also of a wrong file: it is reported once
	if err != nil {
		return fmt.Errorf("ledger: tokens file %s: %w", t.file, err)
	}
	t.callers, t.byName = callers, make(map[string]Caller, len(callers))
	for _, c := range callers {
		t.byName[c.Name] = c
	}
	return nil
}

func parseTokens(data []byte) (map[[sha256.Size]byte]Caller, error) {
	var all map[string]Caller
	dec := json.NewDecoder(strings.NewReader(string(data)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&all); err != nil {
		return nil, errors.New("it is not JSON of the form " +
			`{"<token>": {"name": "…", "publish": ["order.*"], "consume": ["PointsConsumer"], "rate": 100}}`)
	}
	callers := make(map[[sha256.Size]byte]Caller, len(all))
	for token, c := range all {
		switch {
		case c.Name == "" || len(c.Name) > 128:
			return nil, errors.New("each token needs a name of at most 128 bytes")
		case len(token) < minToken:
			return nil, fmt.Errorf("the token of %s has fewer than %d characters", c.Name, minToken)
		}
		if c.Rate < 0 {
			return nil, fmt.Errorf("the rate of %s is %g: it must be a number of calls a second, or 0 for %d", c.Name, c.Rate, defaultRate)
		}
		for _, p := range append(append([]string{}, c.Publish...), c.Consume...) {
			if _, err := path.Match(p, ""); err != nil || p == "" {
				return nil, fmt.Errorf("%q of %s is no name and no pattern such as order.*", p, c.Name)
			}
		}
		callers[sha256.Sum256([]byte(token))] = c
	}
	return callers, nil
}

// Authorize is an [Authorizer]. A caller whose certificate the server has verified needs no token, if the common name of the
// certificate is the name of a caller in the file.
func (t *Tokens) Authorize(r *http.Request) (Caller, error) {
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		t.mu.RLock()
		c, ok := t.byName[r.TLS.VerifiedChains[0][0].Subject.CommonName]
		t.mu.RUnlock()
		if ok {
			return c, nil
		}
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		return Caller{}, errors.New("no bearer token")
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	c, ok := t.callers[sha256.Sum256([]byte(strings.TrimSpace(token)))]
	if !ok {
		return Caller{}, errors.New("unknown bearer token")
	}
	return c, nil
}

type callerKey struct{}

// callerOf is who calls.
func callerOf(ctx context.Context) Caller {
	c, _ := ctx.Value(callerKey{}).(Caller)
	return c
}

// refusal answers a call with an error before it is read.
type refusal func(w http.ResponseWriter, r *http.Request, err *connect.Error, status int)

// refusing answers in the protocol of the call, or, where that is none of ours, with a text and a status.
func refusing(opts ...connect.HandlerOption) refusal {
	writer := connect.NewErrorWriter(opts...)
	return func(w http.ResponseWriter, r *http.Request, err *connect.Error, status int) {
		if writer.IsSupported(r) {
			_ = writer.Write(w, r, err) // the connection is the caller's
			return
		}
		maps.Copy(w.Header(), err.Meta())
		http.Error(w, err.Message(), status)
	}
}

// authorized lets only those calls through that the authorizer knows.
func authorized(authorize Authorizer, refuse refusal, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		caller, err := authorize(r)
		if err != nil {
			refuse(w, r, connect.NewError(connect.CodeUnauthenticated,
				errors.New("send Authorization: Bearer with a token that the service knows")), http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), callerKey{}, caller)))
	})
}
