package store_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

// One owner at a time has a partition: another one gets it when it was released, or when the time is over.
func TestAPartitionHasOneOwner(t *testing.T) {
	t.Parallel()
	eachDB(t, func(t *testing.T, db *bun.DB, d dialect.Dialect) {
		s, ctx := store.NewInboxes(d), t.Context()
		own := func(partition, owner string) bool {
			yes, err := s.Own(ctx, db, "in", partition, owner, time.Hour)
			require.NoError(t, err)
			return yes
		}
		require.True(t, own("p0", "me"), "the row is made")
		require.True(t, own("p0", "me"), "it can be prolonged")
		require.False(t, own("p0", "other"))
		require.True(t, own("p1", "other"))
		require.NoError(t, s.Release(ctx, db, "in", "me"))
		require.True(t, own("p0", "other"))
		testdb.Exec(t, db, "UPDATE bc_inbox SET owned_until = "+d.After+" WHERE partition_name = 'p1'", -dialect.Micro(time.Minute))
		require.True(t, own("p1", "me"), "its time is over")
	})
}

// A batch is entered under the lock of its partition's row, by the owner if one is named. What it brings is summed up.
func TestABatchIsCountedUnderItsPartition(t *testing.T) {
	t.Parallel()
	eachDB(t, func(t *testing.T, db *bun.DB, d dialect.Dialect) {
		s, ctx := store.NewInboxes(d), t.Context()
		bring := func(owner string, a store.Arrived) error {
			return db.RunInTx(ctx, d.ReadCommitted(), func(ctx context.Context, tx bun.Tx) error {
				if err := s.Enter(ctx, tx, a.Inbox, a.Partition, owner); err != nil {
					return err
				}
				return s.Add(ctx, tx, a)
			})
		}
		require.NoError(t, bring("", store.Arrived{Inbox: "in", Partition: "p0", Offset: "41", Landed: 3, Duplicates: 1}), "the row is made")
		require.NoError(t, bring("", store.Arrived{Inbox: "in", Partition: "p1", Landed: 2, Undecodable: 1}))
		require.NoError(t, bring("", store.Arrived{Inbox: "in", Partition: "p0", Duplicates: 4}))
		require.ErrorIs(t, bring("me", store.Arrived{Inbox: "in", Partition: "p0", Landed: 9}), store.ErrLeaseLost)
		require.ErrorIs(t, bring("me", store.Arrived{Inbox: "in", Partition: "p2", Landed: 9}), store.ErrLeaseLost)
		_, err := s.Own(ctx, db, "in", "p0", "me", time.Hour)
		require.NoError(t, err)
		require.NoError(t, bring("me", store.Arrived{Inbox: "in", Partition: "p0", Landed: 1}))
		sum, err := s.Counts(ctx, db, "in")
		require.NoError(t, err)
		require.Equal(t, store.Arrived{Inbox: "in", Landed: 6, Duplicates: 5, Undecodable: 1}, sum)
		sum, err = s.Counts(ctx, db, "another")
		require.NoError(t, err)
		require.Equal(t, store.Arrived{Inbox: "another"}, sum)
		var offset string
		require.NoError(t, db.QueryRowContext(ctx, "SELECT last_offset FROM bc_inbox WHERE partition_name = 'p0'").Scan(&offset))
		require.Equal(t, "41", offset, "a batch without an offset leaves it")
	})
}

// A message that cannot be an event for a consumer is landed as a DEAD event with a DEAD delivery, which says why.
func TestAMessageCanBeDeadFromTheStart(t *testing.T) {
	t.Parallel()
	eachDB(t, func(t *testing.T, db *bun.DB, d dialect.Dialect) {
		s, ctx := store.NewInboxes(d), t.Context()
		addEvent(t, db, d, "a", "NEW", 0)
		addEvent(t, db, d, "b", "NEW", 0)
		inTx(t, db, func(ctx context.Context, tx bun.Tx) {
			require.NoError(t, s.Bury(ctx, tx, "inbox", "a", "not JSON"))
		})
		var event, delivery, why string
		require.NoError(t, db.QueryRowContext(ctx, "SELECT e.status, l.status, l.error_message FROM bc_outbox_event e "+
			"JOIN bc_event_consume_log l ON l.event_id = e.event_id WHERE l.consumer_name = 'inbox'").Scan(&event, &delivery, &why))
		require.Equal(t, []string{"DEAD", "DEAD", "not JSON"}, []string{event, delivery, why})
		addEvent(t, db, d, "c", "FAILED", 0)
		addEvent(t, db, d, "d", "SENT", 0)
		open := func(most int) int {
			n, err := s.Open(ctx, db, most)
			require.NoError(t, err)
			return n
		}
		require.Equal(t, 2, open(10), "neither what is DEAD nor what is SENT")
		require.Equal(t, 1, open(1), "it counts no further")
	})
}
