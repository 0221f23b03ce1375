package ops_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/migrations"
	"github.com/bluecone-go/bluecone/ops"
	"github.com/bluecone-go/bluecone/outbox"
)

func migrate(t *testing.T, db *bun.DB) error { t.Helper(); return migrations.Up(t.Context(), db) }

// Events that retention has moved to the archive are found and told like any other.
func TestTheArchiveAnswersToo(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db, ops.Config{}).consumers()
		f.save(paid{OrderID: "7"}, paid{OrderID: "8"})
		f.once()
		f.exec("UPDATE bc_outbox_event SET created_at = " + f.now(-time.Hour) + ", sent_at = " + f.now(-time.Hour) + " WHERE aggregate_id = '7'")
		r, err := outbox.NewRetention(f.ob, outbox.RetentionConfig{Keep: time.Minute, Archive: true})
		require.NoError(t, err)
		n, err := r.RunOnce(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 1, n)
		e := f.event("7")
		require.True(t, e.Archived)
		require.Equal(t, "SUCCESS", string(delivery(e, "Steady").Status), "with its deliveries")
		p, err := f.ops.Events(t.Context(), ops.Query{AggregateID: "7"})
		require.NoError(t, err)
		require.Len(t, p.Rows, 1)
		for _, key := range []string{"7", "order:7:paid", paidID("7")} {
			s, err := f.ops.Trace(t.Context(), key)
			require.NoError(t, err, key)
			require.Len(t, s.Events, 1, key)
		}
	})
}

// An event that was deleted when it was SENT lives on in its deliveries.
func TestDeletedEventsAreRemembered(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db, ops.Config{})
		var err error
		f.ob, err = outbox.New(db, outbox.Config{Logger: slog.New(slog.DiscardHandler), DeleteSent: true})
		require.NoError(t, err)
		f.consumers().save(paid{OrderID: "7"})
		f.once()
		require.Zero(t, f.count("SELECT COUNT(*) FROM bc_outbox_event"))
		e := f.event("7")
		require.True(t, e.Deleted)
		require.Equal(t, "order.paid", e.EventType)
		require.Len(t, e.Deliveries, 2)
		for _, key := range []string{"order:7:paid", "steady:7", paidID("7")} {
			s, err := f.ops.Trace(t.Context(), key)
			require.NoError(t, err, key)
			require.Len(t, s.Events, 1, key)
		}
	})
}
