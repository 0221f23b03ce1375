package web

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/dburl"
	"github.com/bluecone-go/bluecone/demo/bluecone/monolith"
	"github.com/bluecone-go/bluecone/demo/bluecone/settings"
)

// Nobody holds a request open for ever by sending its body slowly, and nothing comes of what had arrived until then.
func TestASlowBodyIsNotWaitedForLong(t *testing.T) {
	t.Parallel()
	db, err := dburl.Open(t.Context(), "sqlite://"+filepath.Join(t.TempDir(), "demo.db"))
	require.NoError(t, err)
	defer db.Close()
	app, err := monolith.New(t.Context(), monolith.Options{DB: db, Settings: settings.Default(), Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	server := httptest.NewServer(New(app, Config{Faults: true, Metrics: http.NotFoundHandler(), bodyTime: 200 * time.Millisecond}))
	defer server.Close()
	for _, path := range []string{"/users", "/orders", "/orders/1/pay", "/orders/1/refund", "/faults"} {
		slow, drip := io.Pipe()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+path, slow)
		require.NoError(t, err)
		context.AfterFunc(ctx, func() { _ = drip.Close() }) // or the client waits for its own body
		go func() { _, _ = drip.Write([]byte("{")) }()      // and no more
		res, err := server.Client().Do(r)
		require.NoError(t, err, path)
		require.Equal(t, http.StatusBadRequest, res.StatusCode, path)
		require.NoError(t, res.Body.Close())
		cancel()
	}
	users, err := db.NewSelect().Table("demo_user").Count(t.Context())
	require.NoError(t, err)
	require.Zero(t, users)
}
