package monolith_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/demo/bluecone/module/order"
	"github.com/bluecone-go/bluecone/demo/bluecone/module/points"
	"github.com/bluecone-go/bluecone/demo/bluecone/monolith"
	"github.com/bluecone-go/bluecone/demo/bluecone/settings"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/reaper"
)

// tries counts how often a lease was asked for.
type tries struct{ n atomic.Int64 }

func (h *tries) BeforeQuery(ctx context.Context, _ *bun.QueryEvent) context.Context { return ctx }

func (h *tries) AfterQuery(_ context.Context, ev *bun.QueryEvent) {
	if strings.HasPrefix(ev.Query, "UPDATE bc_job_lease SET locked_by = '") {
		h.n.Add(1)
	}
}

// A job that its own schedule has at work is run after that, not refused.
func TestRunJobWaitsForItsTurn(t *testing.T) {
	t.Parallel()
	db, asked := testdb.Open(t, "sqlite"), &tries{}
	app, err := monolith.New(t.Context(), monolith.Options{
		DB: db.WithQueryHook(asked), Settings: settings.Default(), Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	_, err = app.RunJob(t.Context(), reaper.JobCode)
	require.NoError(t, err)
	hold := func(by any) {
		_, err := db.ExecContext(t.Context(), "UPDATE bc_job_lease SET locked_by = ?, locked_until = '2999-01-01 00:00:00.000000' "+
			"WHERE job_code = ?", by, reaper.JobCode)
		require.NoError(t, err)
	}
	hold("another")
	before := asked.n.Load()
	done := make(chan error, 1)
	go func() {
		_, err := app.RunJob(t.Context(), reaper.JobCode)
		done <- err
	}()
	require.Eventually(t, func() bool { return asked.n.Load() >= before+2 }, testdb.Patience(), time.Millisecond, "it asks again")
	require.Empty(t, done)
	hold(nil)
	require.NoError(t, <-done)
}

// Where the points are another program's, the reaper cancels orders with points that have waited too long, and no others.
func TestOrdersWithPointsElsewhereAreCanceledWhenTheyWaitTooLong(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = fmt.Fprint(w, `{"available": 500, "frozen": 0}`)
		}))
		defer elsewhere.Close()
		client, err := points.NewClient(elsewhere.URL)
		require.NoError(t, err)
		s := settings.Default()
		s.LockTimeout = time.Millisecond
		app, err := monolith.New(t.Context(), monolith.Options{DB: db, Settings: s, Points: client, Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		u, err := app.Orders.CreateUser(t.Context(), "", order.NewUser{Points: 500})
		require.NoError(t, err)
		place := func(pts int64) string {
			o, err := app.Orders.Create(t.Context(), "", order.NewOrder{UserID: u.UserID, TotalCents: 1000, Points: pts})
			require.NoError(t, err)
			return o.OrderID
		}
		waits, paid, without := place(200), place(100), place(0)
		_, err = app.Orders.Pay(t.Context(), paid, "pay", true)
		require.NoError(t, err)
		report, err := app.Reap(t.Context())
		require.NoError(t, err)
		require.Zero(t, report.Released, "order.checkout_locked is not delivered yet")
		_, err = app.Publisher.RunOnce(t.Context())
		require.NoError(t, err)
		report, err = app.Reap(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 1, report.Released)
		for id, status := range map[string]string{waits: order.StCancel, paid: order.StPaid, without: order.WaitPay} {
			o, err := app.Orders.Get(t.Context(), id)
			require.NoError(t, err)
			require.Equal(t, status, o.Status)
		}
		require.Equal(t, 1, testdb.Count(t, db, "SELECT COUNT(*) FROM bc_outbox_event WHERE event_type = 'order.canceled'"))
	})
}
