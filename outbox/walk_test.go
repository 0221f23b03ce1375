package outbox_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// RunOnce ends when nothing deliverable is left, however many events it must leave alone: here another instance has
// the first event of their aggregate in flight.
func TestRunOnceGetsPastWhatIsBlocked(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]string{
		"saved one after the other": "",
		"due at one moment":         "UPDATE bc_outbox_event SET next_retry_at = '2020-01-01 00:00:00.000000'",
		"without a time":            "UPDATE bc_outbox_event SET next_retry_at = NULL",
		"the last without a time":   "UPDATE bc_outbox_event SET next_retry_at = NULL WHERE aggregate_id = 'free'",
		"delayed": "UPDATE bc_outbox_event SET status = 'SCHEDULED', lock_version = 0, next_retry_at = '2020-01-01 " +
			"00:00:00.000000'",
		"parked": "UPDATE bc_outbox_event SET status = 'SCHEDULED', lock_version = 1, next_retry_at = '2020-01-01 00:00:00.000000'",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testdb.Each(t, func(t *testing.T, db *bun.DB) {
				f := newFixture(t, db)
				f.registered("A")
				const blocked, free = 6000, 5 // a claim looks at 4,995
				for i := 0; i < blocked; i += 500 {
					f.save(numbered("busy", i, 500)...)
				}
				f.save(numbered("free", 0, free)...)
				if set != "" {
					f.exec(set)
				}
				f.exec("UPDATE bc_outbox_event SET status = 'DISPATCHING', locked_by = 'elsewhere', lock_version = 1, next_retry_at = '2100-01-01 " +
					"00:00:00.000000' WHERE aggregate_id = 'busy' AND id = (SELECT first FROM (SELECT MIN(id) AS first FROM bc_outbox_event) AS x)")
				f.once()
				require.Equal(t, free, f.count("SELECT COUNT(*) FROM effect WHERE aggregate = 'free'"))
				require.Zero(t, f.count("SELECT COUNT(*) FROM effect WHERE aggregate = 'busy'"))
			})
		})
	}
}

// It gets past deliveries that must wait in the consume log as well: another instance runs the first one of their aggregate.
func TestRunOnceGetsPastDeliveriesThatWait(t *testing.T) {
	t.Parallel()
	for kind, k := range workKinds {
		if k.delivery == "" {
			continue
		}
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			testdb.Each(t, func(t *testing.T, db *bun.DB) {
				f := newFixture(t, db)
				f.registered("A")
				const blocked, free = 1000, 250 // a claim takes 200 at most
				f.save(numbered("busy", 0, blocked)...)
				for i := range free {
					f.save(numbered(fmt.Sprintf("free-%d", i%5), i, 1)...)
				}
				f.turnInto(kind, "%")
				require.NoError(t, f.fallDue(t.Context(), db, "%"))
				f.exec("UPDATE bc_event_consume_log SET status = 'PROCESSING', locked_by = 'elsewhere', next_retry_at = '" + someday +
					"' WHERE outbox_id = (SELECT MIN(id) FROM bc_outbox_event)")
				f.once()
				require.Equal(t, free, f.count("SELECT COUNT(*) FROM effect"))
				require.Zero(t, f.count("SELECT COUNT(*) FROM effect WHERE aggregate = 'busy'"))
			})
		})
	}
}

// What is put off behind a retry is due when that has succeeded, and RunOnce delivers it too.
func TestRunOnceDeliversWhatSleptBehindARetry(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.registered("A")
		const events = 250 // one that ends wakes 100
		f.save(numbered("one", 0, events)...)
		f.turnInto(3, "%") // they wait
		f.exec("UPDATE bc_event_consume_log SET status = 'FAILED', attempts = 1, next_retry_at = '2020-01-01 00:00:00.000000' " +
			"WHERE outbox_id = (SELECT MIN(id) FROM bc_outbox_event)")
		f.once()
		require.Equal(t, events, f.count("SELECT COUNT(*) FROM effect"))
		require.Zero(t, f.count("SELECT COUNT(*) FROM effect x WHERE EXISTS (SELECT 1 FROM effect y WHERE y.id < x.id AND y.seq > x.seq)"),
			"in their order")
	})
}

// What has to wait for events that RunOnce itself has in flight is delivered by the same RunOnce: delayed events of one
// aggregate are not claimed beside each other.
func TestRunOnceComesBackForWhatWaitedForItself(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.registered("A")
		const events = 350 // a claim takes 100
		f.save(numbered("one", 0, events)...)
		f.turnInto(1, "%")
		require.NoError(t, f.fallDue(t.Context(), db, "%"))
		f.once()
		require.Equal(t, events, f.count("SELECT COUNT(*) FROM effect"))
		require.Zero(t, f.count("SELECT COUNT(*) FROM effect x WHERE EXISTS (SELECT 1 FROM effect y WHERE y.id < x.id AND y.seq > x.seq)"),
			"in their order")
	})
}

// An event that comes after a delayed one which is due, too, may have its turn first, and is put off then. The same RunOnce delivers
// it when the delayed one, which wakes nobody, has been delivered.
func TestRunOnceDeliversWhatIsBehindADelayedEvent(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.registered("A")
		const aggregates = 300
		delayed, live := make([]bus.Event, aggregates), make([]bus.Event, aggregates)
		for i := range aggregates {
			id := fmt.Sprint("order-", i)
			delayed[i] = outbox.With(orderPaid{OrderID: id, Seq: 1}, outbox.DeliverAt(time.Now().Add(time.Hour)))
			live[i] = orderPaid{OrderID: id, Seq: 2}
		}
		f.save(delayed...)
		f.exec("UPDATE bc_outbox_event SET next_retry_at = created_at")
		f.save(live...)
		f.once()
		require.Equal(t, 2*aggregates, f.count("SELECT COUNT(*) FROM effect"))
	})
}

// A delivery that another session has locked while RunOnce claims is delivered by the same RunOnce if it is free when the others
// have been. SQLite locks no rows: there another instance has leased it, and puts it back.
func TestRunOnceComesBackForALockedDelivery(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.registered("A")
		f.save(orderPaid{OrderID: "held", Seq: 1}, orderPaid{OrderID: "free", Seq: 2})
		f.turnInto(3, "%") // they wait
		require.NoError(t, f.fallDue(t.Context(), db, "%"))
		letGo := f.hold("held")
		f.whenRunOnceLooksAgain(letGo)
		f.once()
		require.Equal(t, []string{"2", "1"}, f.sequenceOf("SELECT seq FROM effect ORDER BY id"))
	})
}

// hold takes the delivery of an aggregate from publishers until it is let go.
func (f *fixture) hold(aggregate string) (letGo func()) {
	f.t.Helper()
	if f.db.Dialect().Name() == dialect.SQLite {
		const row = " WHERE aggregate_id = ?"
		f.exec("UPDATE bc_event_consume_log SET status = 'PROCESSING', locked_by = 'elsewhere', next_retry_at = '"+someday+"'"+row, aggregate)
		return func() {
			f.exec("UPDATE bc_event_consume_log SET status = 'PENDING', locked_by = NULL, next_retry_at = created_at"+row, aggregate)
		}
	}
	id := f.count("SELECT id FROM bc_event_consume_log WHERE aggregate_id = ?", aggregate)
	tx, err := f.db.BeginTx(f.t.Context(), nil)
	require.NoError(f.t, err)
	_, err = tx.ExecContext(f.t.Context(), "SELECT id FROM bc_event_consume_log WHERE id = ? FOR UPDATE", id) // MySQL locks what it reads
	require.NoError(f.t, err)
	return func() { assert.NoError(f.t, tx.Rollback()) }
}

// whenRunOnceLooksAgain calls do when RunOnce has delivered what it could, and looks whether anything is left.
func (f *fixture) whenRunOnceLooksAgain(do func()) {
	looks := 0
	look := &before{text: "l.next_retry_at LIMIT 1) <= "}
	look.do = func() {
		if looks++; looks < 3 { // the first two belong to the cycle
			look.done.Store(false)
			return
		}
		do()
	}
	f.db.AddQueryHook(look) //nolint:staticcheck // the engine's own statements are to be seen
}

// numbered are n events of one aggregate, from first on.
func numbered(aggregate string, first, n int) []bus.Event {
	events := make([]bus.Event, n)
	for i := range events {
		events[i] = orderPaid{OrderID: aggregate, Seq: first + i}
	}
	return events
}
