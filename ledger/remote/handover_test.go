package remote_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/ledger/remote"
	"github.com/bluecone-go/bluecone/outbox"
)

// unsealed counts the events of which a monolith may still be about to commit an effect: docs/extracting-a-module.md.
const unsealed = `SELECT COUNT(*) FROM bc_outbox_event e WHERE e.event_type IN ('order.paid') AND e.status <> 'SENT' AND NOT EXISTS (
    SELECT 1 FROM bc_event_consume_log l
    WHERE l.event_id = e.event_id AND l.consumer_name = 'PointsConsumer' AND l.status <> 'PROCESSING')`

// A module leaves the monolith with its tables while events come: none is left out, and none has its effect in both places.
func TestHandOverAtARecordedPosition(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		ctx, op := t.Context(), outbox.Operation{Actor: "ann", Reason: "points move out"}
		_, err := db.ExecContext(ctx, "CREATE TABLE effect (id VARCHAR(64), event_id VARCHAR(64), order_id VARCHAR(64), seq INTEGER)")
		require.NoError(t, err)
		stop := (&world{t: t}).monolith(db)
		w := newWorld(t, db, 0) // the ledger comes when the monolith is there
		_, err = w.db.ExecContext(ctx, "CREATE TABLE handover (name VARCHAR(64) PRIMARY KEY, position BIGINT)")
		require.NoError(t, err)
		var all []string
		come := func() { // events come all the time
			for _, order := range []string{"A", "B", "C"} {
				all = append(all, w.publish(order, 4)...)
			}
		}
		come()
		require.NoError(t, w.ob.Pause(ctx, op, consumer, time.Hour))
		come()
		stop() // the monolith is deployed without the module
		come()
		require.Eventually(t, func() bool {
			var n int
			require.NoError(t, db.QueryRowContext(ctx, unsealed).Scan(&n))
			return n == 0
		}, testdb.Patience(), 50*time.Millisecond)
		copied := w.copyOver(db)
		require.Equal(t, copied, w.copyOver(db), "a copy that is repeated after a crash changes nothing")
		come()
		w.consume(nothing, remote.Config{})
		require.Len(t, w.effects(), copied, "it is paused still")
		require.NoError(t, w.ob.Resume(ctx, op, consumer))
		w.done(len(all))
		slices.Sort(all)
		require.Equal(t, all, w.effects(), "each once")
		var left int
		require.NoError(t, db.QueryRowContext(ctx, "SELECT COUNT(*) FROM effect").Scan(&left))
		require.Equal(t, copied, left, "and none after the position in the monolith")
	})
}

// monolith runs the module beside the events, and waits until others can know of it.
func (w *world) monolith(db *bun.DB) (stop func()) {
	w.t.Helper()
	db = bun.NewDB(db.DB, db.Dialect()) // as another process has one
	b := bus.New(db, bus.Config{Logger: logger()})
	register(b, nothing)
	ob, err := outbox.New(db, outbox.Config{Logger: logger()})
	require.NoError(w.t, err)
	pub, err := outbox.NewPublisher(ob, b, outbox.PublisherConfig{Poll: 20 * time.Millisecond})
	require.NoError(w.t, err)
	stop = w.beside(pub.Run)
	require.Eventually(w.t, func() bool {
		var n int
		require.NoError(w.t, db.QueryRowContext(w.t.Context(), "SELECT COUNT(*) FROM bc_consumer_type").Scan(&n))
		return n == 1
	}, testdb.Patience(), 10*time.Millisecond)
	return stop
}

// copyOver copies the module's table and records the position, by one transaction, unless that was done. It returns how many rows
// were copied.
func (w *world) copyOver(from *bun.DB) (rows int) {
	w.t.Helper()
	type effect struct {
		bun.BaseModel `bun:"table:effect"`

		ID      string
		EventID string
		OrderID string
		Seq     int
	}
	var module []effect
	var position int64
	ctx := w.t.Context()
	require.NoError(w.t, from.QueryRowContext(ctx, "SELECT MAX(id) FROM bc_outbox_event").Scan(&position))
	require.NoError(w.t, from.NewSelect().Model(&module).Scan(ctx))
	require.NoError(w.t, w.db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		var done int
		if err := tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM handover WHERE name = ?", consumer).Scan(&done); err != nil || done > 0 {
			return err
		}
		_, err := tx.ExecContext(ctx, "INSERT INTO handover (name, position) VALUES (?, ?)", consumer, position)
		if err != nil || len(module) == 0 {
			return err
		}
		_, err = tx.NewInsert().Model(&module).Exec(ctx)
		return err
	}))
	return len(w.effects())
}
