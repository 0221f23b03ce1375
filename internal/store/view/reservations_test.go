package view_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/store/view"
)

// Reservations that wait come in the order in which their producers are asked, those that have changed latest first, and those of
// events by their ids.
func TestReservationsAreListed(t *testing.T) {
	t.Parallel()
	each(t, func(f fixture) {
		ctx, rows, list := f.t.Context(), store.NewReservations(f.D), must[[]view.Reservation](f.t)
		require.Empty(f.t, list(view.ReservationsWaiting(ctx, f.Reader, 10, 20)))
		require.NoError(f.t, f.db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
			for id, ttl := range map[string]time.Duration{"late": time.Hour, "over": -time.Minute, "soon": time.Minute, "ended": time.Hour} {
				err := rows.Add(ctx, tx, store.Reservation{
					Token: "token of " + id, EventID: id, Caller: "shop", EventType: "order.paid", Event: "{}", CheckURL: "http://shop/check",
				}, ttl)
				if err != nil {
					return err
				}
			}
			return rows.End(ctx, tx, "token of ended", store.Confirmed)
		}))
		require.NoError(f.t, rows.AskAgain(ctx, f.db, "token of over", time.Second, "nobody answers, and this is long"))
		f.exec("UPDATE bc_reservation SET updated_at = "+f.D.After+" WHERE event_id = 'ended'", int64(time.Minute/time.Microsecond))

		ids := func(found []view.Reservation) (ids []string) {
			for _, r := range found {
				ids = append(ids, r.EventID)
			}
			return ids
		}
		waiting := list(view.ReservationsWaiting(ctx, f.Reader, 10, 20))
		require.Equal(f.t, []string{"over", "soon", "late"}, ids(waiting))
		require.Equal(f.t, []string{"over", "soon"}, ids(list(view.ReservationsWaiting(ctx, f.Reader, 2, 20))))
		over := waiting[0]
		require.Equal(f.t, view.Reservation{
			EventID: "over", EventType: "order.paid", Caller: "shop", State: store.Prepared, CheckURL: "http://shop/check", Checks: 1,
			LastError: "nobody answers, and t", IsOver: true, CreatedAt: over.CreatedAt, ExpiresAt: over.ExpiresAt,
			NextCheckAt: over.NextCheckAt, UpdatedAt: over.UpdatedAt,
		}, over)
		f.ago(time.Minute, over.ExpiresAt)
		require.False(f.t, waiting[1].IsOver)

		changed := list(view.ReservationsChanged(ctx, f.Reader, 1, 20))
		require.Equal(f.t, []string{"ended"}, ids(changed))
		require.Equal(f.t, store.Confirmed, changed[0].State)
		require.Zero(f.t, changed[0].NextCheckAt)
		require.Equal(f.t, []string{"soon"}, ids(list(view.ReservationsOf(ctx, f.Reader, []string{"soon", "unknown"}, 20))))
	})
}
