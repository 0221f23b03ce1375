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

// A claim learns which event of an aggregate another instance has leased or may take, and which is the last that anybody has leased.
func TestAClaimLooksAround(t *testing.T) {
	t.Parallel()
	eachLog(t, func(f logFixture) {
		first, second, third := f.event("first", "1"), f.event("second", "1"), f.event("third", "1")
		alone := f.event("alone", "2")
		look := func(owner string, late bool, locked ...int64) map[int64]store.Around {
			around, err := f.log.LookAround(f.t.Context(), f.db, owner, []int64{second.OutboxID, alone.OutboxID}, locked, late)
			require.NoError(f.t, err)
			require.Len(f.t, around, 2)
			require.Zero(f.t, around[alone.OutboxID])
			return around
		}
		mine := []int64{second.OutboxID, third.OutboxID, alone.OutboxID}
		require.Equal(f.t, store.Around{First: first.OutboxID, LastLeased: first.OutboxID}, look("other", true, mine...)[second.OutboxID])
		require.Equal(f.t, store.Around{First: first.OutboxID}, look("other", false, mine...)[second.OutboxID])
		require.Equal(f.t, store.Around{LastLeased: first.OutboxID}, look("me", true, mine...)[second.OutboxID], "not its own lease")
		all := append([]int64{first.OutboxID}, mine...)
		require.Zero(f.t, look("other", true, all...)[second.OutboxID], "all of the aggregate is locked")
		for status, ahead := range map[string]bool{"NEW": true, "SCHEDULED": false, "SENT": false, "FAILED": false} {
			testdb.Exec(f.t, f.db, "UPDATE bc_outbox_event SET status = ?, locked_by = NULL WHERE event_id = 'first'", status)
			require.Equal(f.t, ahead, look("other", false, mine...)[second.OutboxID].First == first.OutboxID, status)
		}
		testdb.Exec(f.t, f.db, "UPDATE bc_outbox_event SET status = 'DISPATCHING', locked_by = 'me', next_retry_at = "+f.d.After+
			" WHERE event_id = 'first'", dialect.Micro(-time.Hour))
		around := look("me", true, mine...)
		require.Equal(f.t, store.Around{First: first.OutboxID}, around[second.OutboxID], "a lease that has run out may be taken")
	})
}

// An event that another transaction has locked cannot be locked: somebody is claiming it. Nobody waits.
func TestProbeDoesNotWait(t *testing.T) {
	t.Parallel()
	eachLog(t, func(f logFixture) {
		a := f.event("a", "1")
		probe := func(ctx context.Context, db bun.IDB) (free bool) {
			require.NoError(f.t, db.RunInTx(ctx, f.d.ReadCommitted(), func(ctx context.Context, tx bun.Tx) (err error) {
				free, err = f.log.Probe(ctx, tx, a.OutboxID)
				return err
			}))
			return free
		}
		require.True(f.t, probe(f.t.Context(), f.db))
		if f.d.Name == "sqlite" { // it has one writer at a time, and no locks of rows
			return
		}
		require.NoError(f.t, f.inTx(func(ctx context.Context, tx bun.Tx) error {
			free, err := f.log.Probe(ctx, tx, a.OutboxID)
			require.NoError(f.t, err)
			require.True(f.t, free)
			ctx, cancel := context.WithTimeout(ctx, testdb.Patience())
			defer cancel()
			require.False(f.t, probe(ctx, f.db))
			return nil
		}))
	})
}
