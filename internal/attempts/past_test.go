package attempts_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/ops"
	"github.com/bluecone-go/bluecone/outbox"
)

func (w *world) ops() *ops.Ops {
	w.t.Helper()
	o, err := ops.New(w.db, w.ob, ops.Config{Logger: logger()})
	require.NoError(w.t, err)
	return o
}

// "Every registered consumer gets every event …, unless an operator skipped it": who gives an event up gives it up for a consumer, too,
// that was registered after it was delivered, whether its past is given to it by an operator or by StartFrom.
func TestWhatWasGivenUpIsNotGivenLater(t *testing.T) {
	t.Parallel()
	on(t, all, func(t *testing.T, db *bun.DB) {
		refusing := func() *world {
			w := newWorld(t, db)
			bus.On(w.bus.Consumer("A", bus.ConsumerConfig{}), func(context.Context, bun.Tx, bus.Message[paid]) error {
				return bus.Permanent(errors.New("never"))
			})
			return w
		}
		before := refusing()
		before.save(paid{ID: "given up"}, paid{ID: "kept"})
		before.once()
		w := refusing()
		w.counting("Late", bus.ConsumerConfig{})
		w.once() // it is registered
		o := w.ops()
		require.NoError(t, o.Discard(t.Context(), clerk, w.eventID("given up")))
		require.ErrorIs(t, o.Backfill(t.Context(), clerk, w.eventID("given up"), "Late"), ops.ErrNotFound)
		_, err := o.StartBulk(t.Context(), clerk, ops.NewBulk{Action: ops.ActionBackfill, Consumer: "Late", Rate: 1000})
		require.NoError(t, err)
		_, err = o.RunBulkOnce(t.Context())
		require.NoError(t, err)
		w.once()
		require.Equal(t, []string{"kept"}, w.column("SELECT aggregate FROM effect"))

		newest := refusing()
		newest.counting("Late", bus.ConsumerConfig{})
		newest.counting("Newest", bus.ConsumerConfig{StartFrom: bus.Beginning()})
		newest.once()
		require.Equal(t, []string{"given up", "kept"}, w.column("SELECT aggregate FROM effect WHERE consumer = 'Newest' ORDER BY id"),
			"what was discarded before a consumer was registered is past like any other")
	})
}

// A row that was written by hand with a tenant that no int64 holds, which MySQL's column takes, is DEAD, and stops nobody else:
// neither the past of a new consumer, which goes along all rows, nor a lane or an operator that reads it.
func TestTenantTooLargeStopsNobodyElse(t *testing.T) {
	t.Parallel()
	on(t, mysqls, func(t *testing.T, db *bun.DB) {
		w := newWorld(t, db)
		w.counting("A", bus.ConsumerConfig{})
		w.save(paid{ID: "1"})
		w.exec("INSERT INTO bc_outbox_event (tenant_id, store_id, aggregate_type, aggregate_id, event_type, event_id, event_payload) VALUES " +
			"(18446744073709551615, 18446744073709551615, 'ORDER', 'huge', 'order.paid', 'by hand', '{}')")
		w.save(paid{ID: "2"})
		w.once()
		require.Equal(t, map[outbox.Status]int{outbox.StatusDead: 1, outbox.StatusSent: 2}, w.statuses())
		late := newWorld(t, db)
		late.counting("A", bus.ConsumerConfig{})
		late.counting("Late", bus.ConsumerConfig{StartFrom: bus.Beginning()})
		late.once()
		require.Equal(t, []string{"1", "2"}, w.column("SELECT aggregate FROM effect WHERE consumer = 'Late' ORDER BY id"))

		last := newWorld(t, db)
		last.counting("A", bus.ConsumerConfig{})
		last.counting("Last", bus.ConsumerConfig{})
		last.once()
		o := last.ops()
		for _, id := range append(w.column("SELECT event_id FROM bc_outbox_event WHERE status = 'SENT' ORDER BY id"), "by hand") {
			require.NoError(t, o.Backfill(t.Context(), clerk, id, "Last"))
		}
		last.once()
		require.Equal(t, []string{"1", "2"}, w.column("SELECT aggregate FROM effect WHERE consumer = 'Last' ORDER BY id"))
		for _, key := range []string{"huge", "1"} {
			page, err := o.Events(t.Context(), ops.Query{AggregateType: "ORDER", AggregateID: key})
			require.NoError(t, err)
			require.Len(t, page.Rows, 1)
			_, err = o.Trace(t.Context(), key)
			require.NoError(t, err)
		}
		_, err := o.Dead(t.Context())
		require.NoError(t, err)
		events, err := w.ob.Events(t.Context(), outbox.Filter{Status: outbox.StatusDead})
		require.NoError(t, err)
		require.Len(t, events, 1)
	})
}

// "Once somebody takes the type, it comes before the later events that this consumer has not had yet": also while the consumer is given
// the past around parked events.
func TestPastAroundParkedEventsKeepsItsOrder(t *testing.T) {
	t.Parallel()
	on(t, all, func(t *testing.T, db *bun.DB) {
		before := newWorld(t, db)
		before.counting("A", bus.ConsumerConfig{})
		for i := range 4 {
			before.save(paid{ID: id(i), Seq: 1}, shipped{ID: id(i), Seq: 2}, paid{ID: id(i), Seq: 3}, shipped{ID: id(i), Seq: 4},
				paid{ID: id(i), Seq: 5})
		}
		before.once()
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 12, outbox.StatusScheduled: 8}, before.statuses())
		w := newWorld(t, db)
		w.counting("A", bus.ConsumerConfig{})
		late := w.bus.Consumer("Late", bus.ConsumerConfig{StartFrom: bus.Beginning()})
		bus.On(late, func(ctx context.Context, tx bun.Tx, m bus.Message[paid]) error {
			return write(ctx, tx, m, m.Payload.Seq)
		})
		bus.On(late, func(ctx context.Context, tx bun.Tx, m bus.Message[shipped]) error {
			return write(ctx, tx, m, m.Payload.Seq)
		})
		w.run(outbox.PublisherConfig{Poll: 20 * time.Millisecond})
		for i := range 4 {
			w.save(paid{ID: id(i), Seq: 6}, shipped{ID: id(i), Seq: 7})
		}
		w.eventually(func() bool {
			w.hurry() // what is parked waits for half a minute
			return w.count("SELECT COUNT(*) FROM effect WHERE consumer = 'Late'") == 28
		}, "the past and what is new")
		for i := range 4 {
			require.Equal(t, []string{"1", "2", "3", "4", "5", "6", "7"},
				w.column("SELECT seq FROM effect WHERE consumer = 'Late' AND aggregate = ? ORDER BY id", id(i)))
		}
	})
}

// ends is a hook that ends a context after so many statements.
type ends struct {
	after int
	end   func()
}

func (e *ends) BeforeQuery(ctx context.Context, _ *bun.QueryEvent) context.Context { return ctx }

func (e *ends) AfterQuery(context.Context, *bun.QueryEvent) {
	if e.after--; e.after == 0 {
		e.end()
	}
}

// Promise 1: a Save whose context ends between two of its statements fails. Whoever goes on with the transaction and saves again, in it
// or in another one, has the event: the key alone does not stand for it.
func TestContextThatEndsInsideOfSaveLosesNoEvent(t *testing.T) {
	t.Parallel()
	on(t, all, func(t *testing.T, db *bun.DB) {
		w := newWorld(t, db)
		hook := &ends{end: func() {}}
		db.AddQueryHook(hook) //nolint:staticcheck // the library's own statements are to be seen
		w.save(paid{ID: "the first Save asks how texts are read"})
		failed := 0
		for after := 1; after <= 4; after++ {
			for _, again := range []bool{true, false} {
				e := keyed{ID: "1", Key: fmt.Sprint(after, again)}
				tx, err := db.BeginTx(context.Background(), nil)
				require.NoError(t, err)
				ctx, cancel := context.WithCancel(t.Context())
				hook.after, hook.end = after, cancel
				if err := w.ob.Save(ctx, tx, e); err != nil {
					require.ErrorIs(t, err, context.Canceled)
					failed++
				}
				hook.end = func() {}
				cancel()
				if again {
					err = w.ob.Save(t.Context(), tx, e)
				}
				if errCommit := tx.Commit(); err == nil && errCommit == nil && again {
					require.Equal(t, 1, w.count("SELECT COUNT(*) FROM bc_outbox_event WHERE event_key = ?", e.Key), e.Key)
				}
				_ = tx.Rollback()
				w.save(e)
				require.Equal(t, 1, w.count("SELECT COUNT(*) FROM bc_outbox_event WHERE event_key = ?", e.Key), e.Key)
			}
		}
		require.Positive(t, failed)
	})
}
