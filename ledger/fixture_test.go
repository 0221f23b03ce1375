package ledger_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/ledger"
	"github.com/bluecone-go/bluecone/outbox"
)

const tokens = `{
	"shop-token": {"name": "shop", "publish": ["order.*"], "consume": []},
	"points-token": {"name": "points", "publish": [], "consume": ["PointsConsumer", "Other"]},
	"rival-token": {"name": "rival", "publish": ["order.*"], "consume": ["PointsConsumer"]}
}`

// instance is one process of the service.
type instance struct {
	t   *testing.T
	url string
}

// serve starts an instance: the service over HTTP, and a publisher beside it.
func serve(t *testing.T, db *bun.DB, cfg ledger.Config) *instance {
	t.Helper()
	logger := slog.New(slog.DiscardHandler)
	if testing.Verbose() {
		logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	ob, err := outbox.New(db, outbox.Config{Logger: logger})
	require.NoError(t, err)
	pub, err := outbox.NewPublisher(ob, bus.New(db, bus.Config{Logger: logger}), outbox.PublisherConfig{Poll: 20 * time.Millisecond})
	require.NoError(t, err)
	if cfg.Authorizer == nil {
		file := filepath.Join(t.TempDir(), "tokens.json")
		require.NoError(t, os.WriteFile(file, []byte(tokens), 0o600))
		known, err := ledger.ReadTokens(file, logger)
		require.NoError(t, err)
		cfg.Authorizer = known.Authorize
	}
	cfg.Logger = logger
	s, err := ledger.New(db, ob, cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	go func() { done <- pub.Run(ctx) }()
	go func() { done <- s.Run(ctx) }()
	server := httptest.NewServer(s)
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
		require.NoError(t, <-done)
		server.CloseClientConnections()
		server.Close()
	})
	return &instance{t: t, url: server.URL}
}

// answer is what a call came back with.
type answer struct {
	t      *testing.T
	status int
	body   map[string]any
	text   string
}

// call sends JSON, as curl would.
func (i *instance) call(token, method, body string) answer {
	i.t.Helper()
	req, err := http.NewRequestWithContext(i.t.Context(), http.MethodPost, i.url+ledger.Path+method, bytes.NewReader([]byte(body)))
	require.NoError(i.t, err)
	req.Header.Set("Content-Type", "application/json")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := http.DefaultClient.Do(req)
	require.NoError(i.t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(i.t, err)
	a := answer{t: i.t, status: resp.StatusCode, text: string(text)}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	require.NoError(i.t, dec.Decode(&a.body), "%s: %s", method, text)
	return a
}

// ok is the body of a call that must succeed.
func (i *instance) ok(token, method, body string) map[string]any {
	i.t.Helper()
	a := i.call(token, method, body)
	require.Equal(i.t, http.StatusOK, a.status, "%s: %s", method, a.text)
	return a.body
}

// refused is the code of a call that must fail.
func (i *instance) refused(token, method, body string) string {
	i.t.Helper()
	a := i.call(token, method, body)
	require.NotEqual(i.t, http.StatusOK, a.status, "%s: %s", method, a.text)
	code, _ := a.body["code"].(string)
	return code
}

func js(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	require.NoError(t, err)
	return string(b)
}

// publish publishes an order.paid of an order.
func (i *instance) publish(order, id string) string {
	i.t.Helper()
	got := i.ok("shop-token", "Publish", js(i.t, map[string]any{"events": []any{map[string]any{
		"eventType": "order.paid", "aggregateType": "ORDER", "aggregateId": order, "payload": map[string]any{"order": order}, "eventId": id,
	}}}))
	return got["eventIds"].([]any)[0].(string) //nolint:forcetypeassert // the answer of the contract
}

// fetch waits for deliveries to PointsConsumer.
func (i *instance) fetch() []map[string]any {
	i.t.Helper()
	var out []map[string]any
	for deadline := time.Now().Add(testdb.Patience()); time.Now().Before(deadline) && len(out) == 0; {
		got := i.ok("points-token", "Fetch", `{"consumer":"PointsConsumer","eventTypes":["order.paid"],"max":100,"wait":"5s"}`)
		for _, d := range got["deliveries"].([]any) { //nolint:forcetypeassert // the answer of the contract
			out = append(out, d.(map[string]any)) //nolint:forcetypeassert // the answer of the contract
		}
	}
	require.NotEmpty(i.t, out, "no delivery came")
	return out
}

// each runs fn on every database.
func each(t *testing.T, fn func(t *testing.T, db *bun.DB)) {
	t.Helper()
	testdb.Each(t, fn)
}
