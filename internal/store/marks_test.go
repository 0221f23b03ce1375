package store_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/internal/testplan"
)

// A mark is a SUCCESS row with what stands in the event; there is at most one for each event and consumer.
func TestMarksAreUniqueAndInOrder(t *testing.T) {
	t.Parallel()
	eachLog(t, func(f logFixture) {
		a, b := f.event("a", "1"), f.event("b", "1")
		mark := func(ds ...store.Delivery) error {
			return f.inTx(func(ctx context.Context, tx bun.Tx) error {
				leases := make([]dialect.Pair, len(ds))
				for i, d := range ds {
					leases[i] = leaseOf(d)
				}
				return f.log.MarkSuccess(ctx, tx, ds, leases)
			})
		}
		require.NoError(t, mark(a, b))
		require.Equal(f.t, deliveryRow{status: store.Success, attempts: 1, due: "none"}, f.row("a"))
		rows, err := f.log.OfEvents(f.t.Context(), f.db, []string{"b", "a"})
		require.NoError(f.t, err)
		require.Equal(f.t, []string{"a", "b"}, []string{rows[0].EventID, rows[1].EventID})
		var tenant, outboxID int64
		var kind, id, of string
		require.NoError(f.t, f.db.QueryRowContext(f.t.Context(), "SELECT tenant_id, outbox_id, aggregate_type, aggregate_id, event_type "+
			"FROM bc_event_consume_log WHERE event_id = 'b'").Scan(&tenant, &outboxID, &kind, &id, &of))
		require.Equal(f.t, []any{int64(7), b.OutboxID, "A", "1", "a.b"}, []any{tenant, outboxID, kind, id, of})

		require.Equal(f.t, dialect.Duplicate, dialect.Classify(mark(b)))
		require.Equal(f.t, 2, f.rows("bc_event_consume_log"))
		existing, err := f.log.Existing(f.t.Context(), f.db, "C", []string{"a", "b", "c"})
		require.NoError(f.t, err)
		require.Equal(f.t, map[string]store.Status{"a": store.Success, "b": store.Success}, existing)
		existing, err = f.log.Existing(f.t.Context(), f.db, "D", []string{"a"})
		require.NoError(f.t, err)
		require.Empty(f.t, existing)
	})
}

// A database that copies the mark from the event notices that the event's lease has gone; all notice it before COMMIT.
func TestMarksNeedTheLeaseOfTheEvent(t *testing.T) {
	t.Parallel()
	eachLog(t, func(f logFixture) {
		a, b := f.event("a", "1"), f.event("b", "2")
		testdb.Exec(f.t, f.db, "UPDATE bc_outbox_event SET lock_version = 2, locked_by = 'other' WHERE event_id = 'b'")
		for _, leases := range [][]dialect.Pair{{leaseOf(a), leaseOf(b)}, {leaseOf(a), {ID: b.OutboxID, Version: 3}}} {
			err := f.inTx(func(ctx context.Context, tx bun.Tx) error {
				if err := f.log.MarkSuccess(ctx, tx, []store.Delivery{a, b}, leases); err != nil {
					return err
				}
				require.False(f.t, f.d.SelectsFreely)
				return errRollback
			})
			if f.d.SelectsFreely {
				require.ErrorIs(f.t, err, store.ErrLeaseLost)
			} else {
				require.ErrorIs(f.t, err, errRollback)
			}
		}
		require.Zero(f.t, f.rows("bc_event_consume_log"))
		require.NoError(f.t, f.inTx(func(ctx context.Context, tx bun.Tx) error {
			held, err := f.log.Holds(ctx, tx, "C", "a", "me", leaseOf(a))
			require.NoError(f.t, err)
			require.False(f.t, held.Marked)
			require.True(f.t, held.Leased)
			require.NoError(f.t, f.log.MarkSuccess(ctx, tx, []store.Delivery{a}, []dialect.Pair{leaseOf(a)}))
			held, err = f.log.Holds(ctx, tx, "C", "a", "me", leaseOf(a))
			require.NoError(f.t, err)
			require.True(f.t, held.Marked)
			require.Positive(f.t, held.Now)
			for _, of := range [][2]string{{"D", "a"}, {"C", "b"}} {
				held, err = f.log.Holds(ctx, tx, of[0], of[1], "me", leaseOf(a))
				require.NoError(f.t, err)
				require.False(f.t, held.Marked, of)
			}
			for owner, lease := range map[string]dialect.Pair{"other": leaseOf(a), "me": {ID: a.OutboxID, Version: 2}} {
				held, err = f.log.Holds(ctx, tx, "C", "a", owner, lease)
				require.NoError(f.t, err)
				require.False(f.t, held.Leased, owner)
			}
			return nil
		}))
		marked, err := f.log.Marked(f.t.Context(), f.db, "C", []string{"a"})
		require.NoError(f.t, err)
		require.True(f.t, marked)
		marked, err = f.log.Marked(f.t.Context(), f.db, "C", []string{"a", "b"})
		require.NoError(f.t, err)
		require.False(f.t, marked)
		f.set("a", "status = 'SKIPPED'")
		marked, err = f.log.Marked(f.t.Context(), f.db, "C", []string{"a"})
		require.NoError(f.t, err)
		require.False(f.t, marked, "a row that is not SUCCESS")
	})
}

// What a handler records is stored as it is, or refused.
func TestNotesAreStoredAsTheyAre(t *testing.T) {
	t.Parallel()
	eachLog(t, func(f logFixture) {
		for _, id := range []string{"a", "b", "other"} {
			f.waiting(id, id)
		}
		annotate := func(notes ...store.Note) error {
			return f.inTx(func(ctx context.Context, tx bun.Tx) error { return f.log.Annotate(ctx, tx, "C", notes) })
		}
		note := store.Note{EventID: "a", IdempotencyKey: "order-1", Result: map[string]int{"points": 3}}
		stored := func(id string) (key, result string) {
			f.t.Helper()
			rows, err := f.log.OfEvents(f.t.Context(), f.db, []string{id})
			require.NoError(f.t, err)
			return rows[0].IdempotencyKey, rows[0].Result
		}
		require.NoError(f.t, annotate())
		require.NoError(f.t, annotate(note, store.Note{EventID: "b"}))
		key, result := stored("a")
		require.Equal(f.t, "order-1", key)
		require.JSONEq(f.t, `{"points":3}`, result)
		key, result = stored("b")
		require.Empty(f.t, key+result)
		for _, text := range []string{"alone", "prepared"} {
			require.NoError(f.t, annotate(store.Note{EventID: "b", Result: text}))
			key, result = stored("b")
			require.Equal(f.t, `"`+text+`"`, result)
			require.Empty(f.t, key)
			f.log.Learn(f.t.Context()) // prepares what has been sent
		}
		require.NoError(f.t, annotate(store.Note{EventID: "a"}, store.Note{EventID: "b", IdempotencyKey: "k'?"}))
		key, result = stored("a")
		require.Empty(f.t, key+result)
		key, result = stored("b")
		require.Equal(f.t, "k'?", key)
		require.Empty(f.t, result)
		key, result = stored("other")
		require.Empty(f.t, key+result, "of another event")
		many := make([]store.Note, 250)
		for i := range many {
			id := fmt.Sprint("many", i)
			f.waiting(id, id)
			many[i] = store.Note{EventID: id, Result: i}
		}
		count := testplan.Count(f.db)
		require.NoError(f.t, annotate(many...))
		require.Equal(f.t, 3, count.N()-2, "statements beside BEGIN and COMMIT")
		for _, i := range []int{0, 99, 100, 249} {
			_, result = stored(many[i].EventID)
			require.Equal(f.t, fmt.Sprint(i), result)
		}
		require.ErrorContains(f.t, annotate(store.Note{EventID: "a", Result: func() {}}), "cannot be encoded")
		require.ErrorContains(f.t, annotate(store.Note{EventID: "a", Result: "\xff"}), "not valid UTF-8")
		require.ErrorContains(f.t, annotate(store.Note{EventID: "a", IdempotencyKey: strings.Repeat("k", 256)}), "idempotency key")
	})
}
