package outbox_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// What waited behind an event that has ended takes the place of its age among what is due, not one behind a whole
// backlog that is younger than it is: whatever waits for it in turn would wait as long.
func TestWhatIsWokenTakesThePlaceOfItsAge(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		var got []string // one worker
		bus.On(f.bus.Consumer("A", bus.ConsumerConfig{Concurrency: 1, Batch: 1}),
			func(_ context.Context, _ bun.Tx, m bus.Message[orderPaid]) error {
				got = append(got, m.ID)
				return nil
			})
		events := []bus.Event{orderPaid{OrderID: "first", Seq: 1}, orderPaid{OrderID: "first", Seq: 2}}
		for _, id := range ids(60) {
			events = append(events, orderPaid{OrderID: id})
		}
		f.save(events...)
		f.wait("A")
		f.exec("UPDATE bc_event_consume_log SET created_at = next_retry_at")
		var second string
		require.NoError(t, db.QueryRowContext(t.Context(), "SELECT event_id FROM bc_outbox_event ORDER BY id LIMIT 1 OFFSET 1").Scan(&second))
		f.exec("UPDATE bc_event_consume_log SET next_retry_at = "+inAnHour(db)+" WHERE event_id = ?", second)
		f.once()
		require.Len(t, got, 62)
		require.Less(t, slices.Index(got, second), 31, "it must not wait for all that is due")
	})
}

// endsMeanwhile ends a delivery while a claim puts off the one behind it.
type endsMeanwhile struct {
	once sync.Once
	end  func()
}

// BeforeQuery does nothing.
func (h *endsMeanwhile) BeforeQuery(ctx context.Context, _ *bun.QueryEvent) context.Context {
	return ctx
}

// AfterQuery sees the statement that puts off what is blocked.
func (h *endsMeanwhile) AfterQuery(_ context.Context, ev *bun.QueryEvent) {
	if strings.Contains(ev.Query, "bc_event_consume_log") && strings.Contains(ev.Query, "SET status = 'PENDING', attempts = ") {
		h.once.Do(h.end)
	}
}

// Between the question whether a delivery may run and the COMMIT that puts it off, what was in its way may end, and find
// nobody to wake. An old one would be put off for up to a minute. (SQLite has one writer: nothing can end meanwhile.)
func TestWhatEndsWhileOthersArePutOffWakesThem(t *testing.T) {
	t.Parallel()
	testdb.EachServer(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		f.counting("A", bus.ConsumerConfig{})
		f.save(orderPaid{OrderID: "a", Seq: 1}, orderPaid{OrderID: "a", Seq: 2}, orderPaid{OrderID: "b"})
		f.wait("A")
		ago := map[string]string{"mysql": "created_at - INTERVAL 1 HOUR", "pg": "created_at - interval '1 hour'"}[db.Dialect().Name().String()]
		f.exec("UPDATE bc_event_consume_log SET created_at = " + ago)
		first := fmt.Sprintf("id = %d", f.count("SELECT MIN(id) FROM bc_event_consume_log"))
		elsewhere := "UPDATE bc_event_consume_log SET status = 'PROCESSING', locked_by = 'elsewhere', lock_version = 1, next_retry_at = " +
			inAnHour(db) + " WHERE "
		f.exec(elsewhere + "aggregate_id = 'b'") // MariaDB locks the first that is not due
		f.exec(elsewhere + first)
		db.AddQueryHook(&endsMeanwhile{end: func() { //nolint:staticcheck // the engine's own statements are to be seen
			f.exec("UPDATE bc_event_consume_log SET status = 'SUCCESS', locked_by = NULL, next_retry_at = NULL, lock_version = 2 WHERE " + first)
		}})
		f.once()
		require.Equal(t, map[consumelog.Status]int{consumelog.Success: 2, consumelog.Processing: 1}, f.deliveries())
	})
}

// A process may die between the COMMIT of a delivery and the wake of the next one of its aggregate, which would stay put off
// for up to a minute. Whoever starts next wakes it, and leaves put off what has something before it.
func TestAStartWakesWhatADeadProcessPutOff(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		f.counting("A", bus.ConsumerConfig{})
		f.save(orderPaid{OrderID: "done", Seq: 1}, orderPaid{OrderID: "done", Seq: 2}, orderPaid{OrderID: "leased", Seq: 1},
			orderPaid{OrderID: "leased", Seq: 2})
		f.wait("A")
		f.exec("UPDATE bc_event_consume_log SET next_retry_at = " + inAnHour(db))
		first := "id IN (SELECT id FROM (SELECT MIN(id) AS id FROM bc_event_consume_log WHERE aggregate_id = ?) AS l)"
		f.exec("UPDATE bc_event_consume_log SET status = 'SUCCESS', next_retry_at = NULL WHERE "+first, "done")
		f.exec("UPDATE bc_event_consume_log SET status = 'PROCESSING', locked_by = 'elsewhere', lock_version = 1 WHERE "+first, "leased")
		f.run(outbox.PublisherConfig{Lease: time.Hour})
		f.eventually(func() bool { return f.deliveries()[consumelog.Success] == 2 }, "the second of the first aggregate is woken")
		require.Equal(t, "done", f.texts("SELECT aggregate FROM effect"))
		require.Equal(t, map[consumelog.Status]int{consumelog.Success: 2, consumelog.Processing: 1, consumelog.Pending: 1}, f.deliveries())
		require.Zero(t, f.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE status = 'PENDING' AND lock_version > 0"),
			"nobody has put it off again")
	})
}

// A running instance wakes it too, when the leases of the dead process have run out, of an event or of a delivery.
func TestTakingOverWakesWhatADeadProcessPutOff(t *testing.T) {
	t.Parallel()
	for name, expire := range map[string]string{
		"delivery": "UPDATE bc_event_consume_log SET next_retry_at = created_at WHERE locked_by = 'elsewhere' AND aggregate_id = 'leased'",
		"event": "UPDATE bc_outbox_event SET status = 'DISPATCHING', locked_by = 'elsewhere', lock_version = 9, next_retry_at = created_at " +
			"WHERE aggregate_id = 'leased'",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testdb.Each(t, func(t *testing.T, db *bun.DB) {
				f := newFixture(t, db)
				f.effects()
				f.counting("A", bus.ConsumerConfig{})
				f.save(orderPaid{OrderID: "done", Seq: 1}, orderPaid{OrderID: "done", Seq: 2}, orderPaid{OrderID: "leased"})
				f.wait("A")
				f.exec("UPDATE bc_event_consume_log SET next_retry_at = " + inAnHour(db))
				first := "id IN (SELECT id FROM (SELECT MIN(id) AS id FROM bc_event_consume_log GROUP BY aggregate_id) AS l)"
				f.exec("UPDATE bc_event_consume_log SET status = 'PROCESSING', locked_by = 'elsewhere', lock_version = 1 WHERE " + first)
				f.run(outbox.PublisherConfig{})
				f.save(orderPaid{OrderID: "it runs"})
				f.eventually(func() bool { return f.count("SELECT COUNT(*) FROM effect") == 1 }, "the publisher has started")
				f.exec("UPDATE bc_event_consume_log SET status = 'SUCCESS', next_retry_at = NULL, locked_by = NULL WHERE status = 'PROCESSING' " +
					"AND aggregate_id = 'done'")
				f.exec(expire)
				f.eventually(func() bool { return f.count("SELECT COUNT(*) FROM effect WHERE aggregate = 'done'") == 1 }, "it is woken")
			})
		})
	}
}

// Whoever takes over an event that a dead process had in flight wakes what waits behind it: nobody else knows of that.
func TestWhatIsTakenOverWakesTheNext(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		f.counting("A", bus.ConsumerConfig{})
		f.save(orderPaid{OrderID: "a", Seq: 1}, orderPaid{OrderID: "a", Seq: 2}, orderPaid{OrderID: "before"})
		f.wait("A")
		f.exec("DELETE FROM bc_event_consume_log WHERE outbox_id IN (SELECT MIN(id) FROM bc_outbox_event GROUP BY aggregate_id)")
		f.exec("UPDATE bc_outbox_event SET status = 'DISPATCHING', locked_by = 'elsewhere', lock_version = 9, next_retry_at = " + inAnHour(db) +
			" WHERE event_id NOT IN (SELECT event_id FROM bc_event_consume_log)")
		f.exec("UPDATE bc_event_consume_log SET next_retry_at = " + inAnHour(db))
		f.run(outbox.PublisherConfig{Lease: time.Hour})
		for i, aggregate := range []string{"before", "a"} { // the first one has it look for what is put off, which it does once in an hour
			f.exec("UPDATE bc_outbox_event SET next_retry_at = created_at WHERE locked_by = 'elsewhere' AND aggregate_id = ?", aggregate)
			f.eventually(func() bool { return f.count("SELECT COUNT(*) FROM effect") == 2*i+1 }, "it is taken over, and what is behind it is woken")
		}
	})
}
