package outbox_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// seedInsert is the statement of the original operations guide, to the letter but for the
// function that makes an id.
var seedInsert = map[string]string{
	"mysql":    seedValues("UUID()", "NOW()"),
	"pg":       seedValues("gen_random_uuid()", "NOW()"),
	"postgres": seedValues("gen_random_uuid()", "NOW()"),
	"sqlite":   seedValues("lower(hex(randomblob(16)))", "datetime('now', '+8 hours')"),
}

func seedValues(uuid, now string) string {
	return `INSERT INTO bc_outbox_event (
       tenant_id, store_id, aggregate_type, aggregate_id, event_type, event_id,
       event_payload, event_metadata, status, retry_count, max_retry_count,
       next_retry_at, created_at, updated_at
   ) VALUES (
       1, 1, 'ORDER', '123', 'order.paid', ` + uuid + `,
       '{"orderId": 123, "couponId": 456}', '{"userId": 789}',
       'NEW', 0, 10, ` + now + `, ` + now + `, ` + now + `
   )`
}

var timeZone = map[string]string{
	"mysql": "SET time_zone = '+08:00'", "postgres": "SET TIME ZONE 'Asia/Shanghai'", "sqlite": "SELECT 1",
}

// handPaid reads the payload of the operations guide, whose ids are numbers.
type handPaid struct {
	OrderID  int64 `json:"orderId"`
	CouponID int64 `json:"couponId"`
}

func (handPaid) EventType() string            { return "order.paid" }
func (handPaid) Aggregate() (kind, id string) { return "ORDER", "123" }

// In a session at +08:00 NOW() is eight hours ahead of UTC. Status NEW is due at once all the same.
func TestHandWrittenInsertFromAnyTimeZoneIsDeliveredAtOnce(t *testing.T) {
	t.Parallel()
	for _, dialect := range testdb.Dialects() {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			db := testdb.Open(t, dialect)
			f := newFixture(t, db)
			got := make(chan bus.Message[handPaid], 1)
			bus.On(f.bus.Consumer("Reader", bus.ConsumerConfig{}), func(_ context.Context, _ bun.Tx, m bus.Message[handPaid]) error {
				got <- m
				return nil
			})
			f.run(outbox.PublisherConfig{Poll: 20 * time.Millisecond, Cron: "0 0 0 1 1 ?"})
			conn, err := db.Conn(t.Context())
			require.NoError(t, err)
			_, err = conn.ExecContext(t.Context(), timeZone[testdb.Dialect(dialect)])
			require.NoError(t, err)
			_, err = conn.ExecContext(t.Context(), seedInsert[testdb.Dialect(dialect)]) // autocommit
			require.NoError(t, err)
			// The pool must not get this session back: its time zone is not ours.
			require.ErrorIs(t, conn.Raw(func(any) error { return sql.ErrConnDone }), sql.ErrConnDone)
			require.NoError(t, conn.Close())
			select {
			case m := <-got:
				require.Equal(t, handPaid{123, 456}, m.Payload)
				require.Equal(t, int64(1), m.TenantID)
				require.Equal(t, "789", m.Metadata["userId"])
			case <-time.After(testdb.Patience()):
				t.Fatal("the event was not delivered")
			}
			f.eventually(func() bool { return f.statuses()[outbox.StatusSent] == 1 }, "it is SENT")
		})
	}
}

// A row with nothing but what must be given is an event too: the defaults of the columns do the rest.
func TestHandWrittenInsertMayLeaveOutEveryDefault(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		f.counting("Counter", bus.ConsumerConfig{})
		f.exec(`INSERT INTO bc_outbox_event (aggregate_type, aggregate_id, event_type, event_id, event_payload) 
			VALUES ('ORDER', '1', 'order.paid', 'by-hand', '{"orderId":"1"}')`)
		f.once()
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 1}, f.statuses())
		require.Equal(t, 1, f.count("SELECT COUNT(*) FROM effect"))
	})
}

// Malformed rows are put aside one by one, each says why, and they keep nobody waiting.
func TestMalformedRowsAreQuarantinedOneByOne(t *testing.T) {
	t.Parallel()
	malformed := []struct{ id, payload, metadata string }{
		{"wrong-shape", `'[1, 2'`, `'{}'`},
		{"not-json", `'hello'`, `'{}'`},
		{"metadata-not-json", `'{"orderId":"x"}'`, `'{"a"'`},
		{"metadata-no-object", `'{"orderId":"x"}'`, `'[]'`},
		{"wrong-type", `'{"orderId":{"a":1}}'`, `'{}'`},
	}
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		f.counting("Counter", bus.ConsumerConfig{})
		f.save(orderPaid{OrderID: "good-1"})
		bad := 0
		for _, r := range malformed {
			_, err := db.ExecContext(t.Context(), "INSERT INTO bc_outbox_event (aggregate_type, aggregate_id, event_type, event_id, "+
				"event_payload, event_metadata) "+
				"VALUES ('ORDER', '"+r.id+"', 'order.paid', '"+r.id+"', "+r.payload+", "+r.metadata+")")
			if err == nil { // PostgreSQL's json type refuses some by itself
				bad++
			}
		}
		require.GreaterOrEqual(t, bad, 2)
		if db.Dialect().Name().String() == "sqlite" { // which stores anything anywhere
			f.exec(`INSERT INTO bc_outbox_event (aggregate_type, aggregate_id, event_type, event_id, event_payload,
			retry_count, lock_version, tenant_id, created_at)
				VALUES ('ORDER', 'words', 'order.paid', 'words', '{"orderId":"x"}', 'many', 0, 'acme', 'yesterday')`)
			bad++
		}
		f.save(orderPaid{OrderID: "good-2"})
		f.once()
		require.Equal(t, 2, f.count("SELECT COUNT(*) FROM effect WHERE aggregate LIKE 'good%'"))
		require.Equal(t, 2, f.count("SELECT COUNT(*) FROM effect"))
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 2, outbox.StatusDead: bad}, f.statuses())
		require.Equal(t, bad, f.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE status = 'DEAD' AND error_message <> ''"), "each says why")
	})
}

// A status that no code knows is left alone; the built-in check of package consistency reports it.
func TestUnknownStatusStopsNobody(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		f.counting("Counter", bus.ConsumerConfig{})
		f.exec(`INSERT INTO bc_outbox_event (aggregate_type, aggregate_id, event_type, event_id, event_payload, status)
			VALUES ('ORDER', 'a', 'order.paid', 'odd', '{}', 'BOGUS')`)
		f.save(orderPaid{OrderID: "b"})
		f.once()
		require.Equal(t, map[outbox.Status]int{"BOGUS": 1, outbox.StatusSent: 1}, f.statuses())
	})
}

// Rows that wait for a time they do not have are made due by the sweep.
func TestSweepMendsRowsWithoutATime(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		f.counting("Counter", bus.ConsumerConfig{})
		f.save(orderPaid{OrderID: "a"}, orderPaid{OrderID: "b"})
		f.exec("UPDATE bc_outbox_event SET status = 'SCHEDULED', next_retry_at = NULL WHERE aggregate_id = 'a'")
		f.exec("UPDATE bc_outbox_event SET status = 'DISPATCHING', next_retry_at = NULL WHERE aggregate_id = 'b'")
		require.NoError(t, f.ob.Sweep(t.Context()))
		f.once()
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 2}, f.statuses())
		require.Equal(t, map[consumelog.Status]int{consumelog.Success: 2}, f.deliveries())
	})
}

// Rule b: a crash between the commit of a retried delivery and the roll-up of its event leaves
// a FAILED event none of whose deliveries waits. The sweep recomputes it.
func TestSweepFinishesWhatACrashLeft(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.failing("A", bus.ConsumerConfig{}, answer(errHandler))
		f.effects()
		f.save(orderPaid{OrderID: "sent"}, orderPaid{OrderID: "dead"}, orderPaid{OrderID: "waits"}, orderPaid{OrderID: "untouched"})
		f.once()
		require.Equal(t, map[outbox.Status]int{outbox.StatusFailed: 4}, f.statuses())
		f.exec("UPDATE bc_event_consume_log SET status = 'SUCCESS' WHERE aggregate_id = 'sent'")
		f.exec("UPDATE bc_event_consume_log SET status = 'DEAD' WHERE aggregate_id = 'dead'")
		f.exec("DELETE FROM bc_event_consume_log WHERE aggregate_id = 'untouched'") // FAILED by hand, say
		require.NoError(t, f.ob.Sweep(t.Context()))
		for id, status := range map[string]outbox.Status{
			"sent": outbox.StatusSent, "dead": outbox.StatusDead, "waits": outbox.StatusFailed,
			"untouched": outbox.StatusNew,
		} {
			require.Equal(t, 1, f.count("SELECT COUNT(*) FROM bc_outbox_event WHERE aggregate_id = ? AND status = ?", id, string(status)), id)
		}
	})
}
