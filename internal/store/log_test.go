package store_test

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

// logFixture is the log of one database, written by the instance "me".
type logFixture struct {
	t   *testing.T
	db  *bun.DB
	d   dialect.Dialect
	log store.Log
}

func eachLog(t *testing.T, fn func(f logFixture)) {
	t.Helper()
	eachDB(t, func(t *testing.T, db *bun.DB, d dialect.Dialect) {
		log, err := store.OpenLog(db)
		require.NoError(t, err)
		log.Learn(t.Context())
		fn(logFixture{t, db, d, log})
	})
}

// event inserts an event that "me" has leased under version 1, and returns its delivery to the consumer C, at its first attempt.
func (f logFixture) event(id, aggregate string) store.Delivery {
	f.t.Helper()
	testdb.Exec(f.t, f.db, "INSERT INTO bc_outbox_event "+
		"(tenant_id, aggregate_type, aggregate_id, event_type, event_id, event_payload, status, locked_by, lock_version, next_retry_at) "+
		"VALUES (7, 'A', ?, 'a.b', ?, '{}', 'DISPATCHING', 'me', 1, "+f.d.After+")", aggregate, id, dialect.Micro(time.Hour))
	d := store.Delivery{
		Consumer: "C", EventID: id, EventType: "a.b", AggregateType: "A", AggregateID: aggregate, TenantID: 7, Attempts: 1,
	}
	require.NoError(f.t, f.db.QueryRowContext(f.t.Context(), "SELECT id FROM bc_outbox_event WHERE event_id = ?", id).Scan(&d.OutboxID))
	return d
}

// waiting inserts an event and its PENDING row for the consumer C, which is due.
func (f logFixture) waiting(id, aggregate string) store.Delivery {
	f.t.Helper()
	d := f.event(id, aggregate)
	require.NoError(f.t, f.log.Defer(f.t.Context(), f.db, []store.Delivery{d}, 0))
	return d
}

// set changes the row of an event for the consumer C.
func (f logFixture) set(id, columns string, args ...any) {
	f.t.Helper()
	testdb.Exec(f.t, f.db, "UPDATE bc_event_consume_log SET "+columns+" WHERE consumer_name = 'C' AND event_id = ?", append(args, id)...)
}

// deliveryRow is what a test looks at in a row of the log.
type deliveryRow struct {
	status   store.Status
	attempts int
	started  int
	version  int64
	owner    string
	due      string // none, now, later or never
	ran      bool   // it has a time of its first run
	err      string
}

// row reads the row of an event for the consumer C.
func (f logFixture) row(id string) (r deliveryRow) { return f.rowOf("C", id) }

func (f logFixture) rowOf(consumer, id string) (r deliveryRow) {
	f.t.Helper()
	err := f.db.QueryRowContext(f.t.Context(), "SELECT status, attempts, started, lock_version, COALESCE(locked_by, ''), "+
		"CASE WHEN next_retry_at IS NULL THEN 'none' WHEN next_retry_at = "+f.d.Never+" THEN 'never' WHEN next_retry_at <= "+f.d.Now+
		" THEN 'now' ELSE 'later' END, CASE WHEN first_run_at IS NULL THEN 0 ELSE 1 END, COALESCE(error_message, '') "+
		"FROM bc_event_consume_log WHERE consumer_name = ? AND event_id = ?", consumer, id).
		Scan(&r.status, &r.attempts, &r.started, &r.version, &r.owner, &r.due, &r.ran, &r.err)
	require.NoError(f.t, err, id)
	return r
}

// rows counts the rows of a table.
func (f logFixture) rows(table string) (n int) {
	f.t.Helper()
	require.NoError(f.t, f.db.QueryRowContext(f.t.Context(), "SELECT COUNT(*) FROM "+table).Scan(&n))
	return n
}

var errRollback = errors.New("rolled back")

// inTx runs fn in a transaction that commits unless fn fails.
func (f logFixture) inTx(fn func(ctx context.Context, tx bun.Tx) error) error {
	return f.db.RunInTx(f.t.Context(), f.d.ReadCommitted(), fn)
}

// claim leases what is due for the consumer C in the name of an instance, in outbox order.
func (f logFixture) claim(owner string) (ds []store.Leased) {
	f.t.Helper()
	require.NoError(f.t, f.log.InTx(f.t.Context(), func(ctx context.Context, tx bun.Tx) error {
		ds = nil
		for _, status := range []store.Status{store.Failed, store.Pending, store.Processing} {
			due, err := f.log.LockDue(ctx, tx, store.DueDeliveries{Consumer: "C", Status: status, Types: []string{"a.b"}, Limit: 10})
			if err != nil {
				return err
			}
			ds = append(ds, due...)
		}
		if len(ds) == 0 {
			return nil
		}
		if err := f.log.RecordUnanswered(ctx, tx, ds); err != nil {
			return err
		}
		return f.log.LeaseLocked(ctx, tx, owner, time.Hour, ds)
	}))
	slices.SortFunc(ds, func(a, b store.Leased) int { return cmp.Compare(a.OutboxID, b.OutboxID) })
	return ds
}

// gate asks for the consumer C in the name of an instance.
func (f logFixture) gate(owner string) store.Gate {
	return store.Gate{Consumer: "C", Types: []string{"a.b"}, Ordered: true, Owner: owner}
}

// claimOne leases the one delivery that is due.
func (f logFixture) claimOne(owner string) store.Leased {
	f.t.Helper()
	ds := f.claim(owner)
	require.Len(f.t, ds, 1)
	return ds[0]
}

// eventsOf are the events of deliveries, in their order.
func eventsOf(ds []store.Leased) []string {
	var ids []string
	for _, d := range ds {
		ids = append(ids, d.EventID)
	}
	return ids
}

func leaseOf(d store.Delivery) dialect.Pair { return dialect.Pair{ID: d.OutboxID, Version: 1} }
