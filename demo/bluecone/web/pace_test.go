package web

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/demo/bluecone/module/order"
	"github.com/bluecone-go/bluecone/demo/bluecone/monolith"
	"github.com/bluecone-go/bluecone/demo/bluecone/settings"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

// That it has waited shows in the time it took at least: a slow machine only adds to that.
func TestANewOrderWaitsWhileTheBusLags(t *testing.T) {
	t.Parallel()
	app, err := monolith.New(t.Context(), monolith.Options{
		DB: testdb.Open(t, "sqlite"), Settings: settings.Default(), Logger: slog.New(slog.DiscardHandler), NoPublisher: true,
	})
	require.NoError(t, err)
	events := make([]bus.Event, 1001)
	for i := range events {
		events[i] = order.CheckoutLocked{OrderID: order.ID(fmt.Sprint(i)), UserID: "7", TotalCents: 100}
	}
	require.NoError(t, app.DB.RunInTx(t.Context(), nil, func(ctx context.Context, tx bun.Tx) error {
		return app.Outbox.Save(ctx, tx, events...)
	}))
	testdb.Run(t, app.Pace)
	testdb.Eventually(t, app.Pace.Lagging, "the backlog is measured")

	w, began := httptest.NewRecorder(), time.Now()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/orders", strings.NewReader(`{"userId": "nobody", "totalCents": 100}`))
	r.Host = "localhost"
	New(app, Config{Metrics: http.NotFoundHandler()}).ServeHTTP(w, r)
	require.Equal(t, http.StatusNotFound, w.Code, w.Body)
	require.GreaterOrEqual(t, time.Since(began), time.Second)
}
