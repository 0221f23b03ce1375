package store_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/store"
)

// What was done with deliveries of a ledger is known by the mark, under a name of its own, with its result. It is done once.
func TestWhatWasPulledIsMarkedOnce(t *testing.T) {
	t.Parallel()
	eachLog(t, func(f logFixture) {
		key := store.PulledName("C")
		require.NotEqual(f.t, "C", key, "the ledger may work on the same database")
		mark := func(ids ...string) error {
			var ds []store.Delivery
			for _, id := range ids {
				ds = append(ds, store.Delivery{Consumer: key, EventID: id, EventType: "a.b", AggregateType: "A", AggregateID: "1", Attempts: 1})
			}
			return f.inTx(func(ctx context.Context, tx bun.Tx) error {
				if err := f.log.MarkPulled(ctx, tx, ds); err != nil {
					return err
				}
				return f.log.Annotate(ctx, tx, key, []store.Note{{EventID: ids[0], Result: map[string]int{"n": 1}}})
			})
		}
		require.NoError(f.t, mark("a", "b"))
		require.Equal(f.t, dialect.Duplicate, dialect.Classify(mark("b", "c")))
		done, err := f.log.Done(f.t.Context(), f.db, key, []string{"a", "b", "c"})
		require.NoError(f.t, err)
		require.Len(f.t, done, 2)
		require.JSONEq(f.t, `{"n":1}`, done["a"])
		require.Empty(f.t, done["b"])
	})
}
