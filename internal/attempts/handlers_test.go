package attempts_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/migrations"
	"github.com/bluecone-go/bluecone/outbox"
)

// refusedError panics when it is nil and asked for its text: a classic mistake of Go.
type refusedError struct{ text string }

func (e *refusedError) Error() string { return e.text }

// loopError is wrapped in itself.
type loopError struct{}

func (e *loopError) Error() string { return "in a circle" }
func (e *loopError) Unwrap() error { return e }

// uncomparable cannot be compared, which errors.Is may not try.
type uncomparableError struct{ list []string }

func (e uncomparableError) Error() string { return strings.Join(e.list, " ") }

// Promise 6 and 5: whatever a handler answers or panics with ends that delivery, and nobody else's.
func TestAnswersThatPanicThemselvesEndTheirDeliveryAlone(t *testing.T) {
	t.Parallel()
	answers := map[string]func() error{
		"nil pointer":         func() error { var e *refusedError; return e },
		"wrapped nil pointer": func() error { var e *refusedError; return errors.Join(errors.New("outer"), e) },
		"uncomparable":        func() error { return uncomparableError{[]string{"a"}} },
		"panics with nil":     func() error { panic(nil) },
		"panics with error":   func() error { var e *refusedError; panic(e) },
		"goexit":              func() error { runtime.Goexit(); return nil },
		"runtime error":       func() error { var m map[string]int; m["x"] = 1; return nil }, //nolint:staticcheck // that is the attempt
		"cancelled":           func() error { return context.Canceled },
		"deadline":            func() error { return fmt.Errorf("late: %w", context.DeadlineExceeded) },
		"permanent nil pointer": func() error {
			var e *refusedError
			return bus.Permanent(e)
		},
		"retry after the end of time": func() error { return bus.RetryAfter(errors.New("later"), 1<<63-1) },
		"retry before":                func() error { return bus.RetryAfter(errors.New("earlier"), -time.Hour) },
		"huge":                        func() error { return errors.New(strings.Repeat("x", 8<<20)) },
	}
	on(t, all, func(t *testing.T, db *bun.DB) {
		w := newWorld(t, db)
		bus.On(w.bus.Consumer("A", bus.ConsumerConfig{MaxAttempts: 1, MaxAge: time.Millisecond}),
			func(_ context.Context, _ bun.Tx, m bus.Message[paid]) error {
				return answers[m.AggregateID]()
			})
		w.counting("B", bus.ConsumerConfig{})
		for name := range answers {
			w.save(paid{ID: name})
		}
		w.save(paid{ID: "after"})
		w.once()
		require.Equal(t, len(answers)+1, w.effects())
		require.Equal(t, len(answers)+1, w.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE consumer_name = 'A' "+
			"AND status IN ('FAILED', 'DEAD', 'PENDING')"))
	})
}

// Promise 5, of an error that is wrapped in itself: looking for its cause never ends.
func TestErrorWrappedInItselfHoldsUpNobody(t *testing.T) {
	t.Parallel()
	on(t, []string{"sqlite"}, func(t *testing.T, db *bun.DB) {
		w := newWorld(t, db)
		bus.On(w.bus.Consumer("A", bus.ConsumerConfig{MaxAttempts: 1}), func(context.Context, bun.Tx, bus.Message[paid]) error {
			return &loopError{}
		})
		w.counting("B", bus.ConsumerConfig{})
		w.save(paid{ID: "1"}, paid{ID: "2"})
		w.settle()
		require.Equal(t, 2, w.effects())
		require.Equal(t, 2, w.deliveries()[consumelog.Dead])
	})
}

// explosive panics when it is decoded.
type explosive struct{ ID string }

func (explosive) EventType() string              { return "order.explosive" }
func (explosive) SchemaVersion() int             { return 2 }
func (e explosive) Aggregate() (kind, id string) { return "ORDER", e.ID }
func (e *explosive) UnmarshalJSON(b []byte) error {
	var plain struct{ ID string }
	if err := json.Unmarshal(b, &plain); err != nil {
		return err
	}
	if e.ID = plain.ID; e.ID == id(3) {
		panic("it explodes")
	}
	return nil
}

// Promise 6: "an undecodable payload" is DEAD, also when decoding or upcasting panics; the process lives, and others go on.
func TestPayloadWhoseDecodingPanicsIsDead(t *testing.T) {
	t.Parallel()
	on(t, all, func(t *testing.T, db *bun.DB) {
		w := newWorld(t, db)
		bus.On(w.bus.Consumer("A", bus.ConsumerConfig{}), func(ctx context.Context, tx bun.Tx, m bus.Message[explosive]) error {
			return write(ctx, tx, m, 1)
		})
		w.bus.Upcast("order.explosive", 1, func(json.RawMessage) (json.RawMessage, error) { panic("the upcaster panics") })
		for i := range 6 {
			w.save(explosive{ID: id(i)})
		}
		w.exec("UPDATE bc_outbox_event SET schema_version = 1 WHERE aggregate_id = ?", id(5))
		w.once()
		require.Equal(t, 4, w.effects())
		require.Equal(t, map[consumelog.Status]int{consumelog.Success: 4, consumelog.Dead: 2}, w.deliveries())
	})
}

// Promise 6: "raises an alert": one that panics, or never returns, stops nobody.
func TestAlertThatPanicsStopsNobody(t *testing.T) {
	t.Parallel()
	on(t, all, func(t *testing.T, db *bun.DB) {
		var told atomic.Int64
		w := newWorldOf(t, db, outbox.Config{}, bus.Config{OnDeadLetter: func(context.Context, bus.DeadLetter) {
			told.Add(1)
			panic("the alert panics")
		}})
		bus.On(w.bus.Consumer("A", bus.ConsumerConfig{}), func(context.Context, bun.Tx, bus.Message[paid]) error {
			return bus.Permanent(errors.New("no"))
		})
		w.counting("B", bus.ConsumerConfig{})
		for i := range 5 {
			w.save(paid{ID: id(i)})
		}
		w.settle()
		require.EqualValues(t, 5, told.Load())
		require.Equal(t, 5, w.effects())
		require.Equal(t, map[outbox.Status]int{outbox.StatusDead: 5}, w.statuses())
	})
}

// Promise 5: "Each has … its own share of the connection pool": a consumer whose handlers all hang, with more workers than the
// pool has connections.
func TestConsumerWithMoreWorkersThanConnectionsDelaysNobody(t *testing.T) {
	t.Parallel()
	on(t, servers, func(t *testing.T, db *bun.DB) {
		w := newWorld(t, db)
		db.SetMaxOpenConns(8)
		gate := make(chan struct{})
		bus.On(w.bus.Consumer("Hangs", bus.ConsumerConfig{Concurrency: 100, Batch: 1, Timeout: 10 * time.Minute}),
			func(ctx context.Context, tx bun.Tx, m bus.Message[shipped]) error {
				<-gate
				return write(ctx, tx, m, 1)
			})
		w.counting("Other", bus.ConsumerConfig{})
		stop := w.run(outbox.PublisherConfig{})
		for i := range 100 {
			w.save(shipped{ID: id(i)})
		}
		for i := range 100 {
			w.save(paid{ID: "other" + id(i)})
		}
		w.eventually(func() bool { return w.count("SELECT COUNT(*) FROM effect WHERE consumer = 'Other'") == 100 }, "the other consumer")
		require.Zero(t, w.count("SELECT COUNT(*) FROM effect WHERE consumer = 'Hangs'"))
		close(gate)
		w.eventually(func() bool { return w.statuses()[outbox.StatusSent] == 200 }, "all are SENT")
		stop()
	})
}

// Promises 2 and 8 with a pool of one connection.
func TestPoolOfOneConnectionIsEnough(t *testing.T) {
	t.Parallel()
	on(t, all, func(t *testing.T, db *bun.DB) {
		w := newWorld(t, db)
		db.SetMaxOpenConns(1)
		var failed sync.Map
		fail := func(m bus.Message[paid]) error {
			if _, again := failed.LoadOrStore(m.Consumer+m.ID, true); m.Payload.Seq%5 == 0 && !again {
				return errors.New("once")
			}
			return nil
		}
		for _, name := range []string{"A", "B", "C"} {
			bus.On(w.bus.Consumer(name, bus.ConsumerConfig{}), func(ctx context.Context, tx bun.Tx, m bus.Message[paid]) error {
				return errors.Join(write(ctx, tx, m, 1), fail(m))
			})
		}
		bus.OnExternal(w.bus.Consumer("External", bus.ConsumerConfig{}), func(ctx context.Context, m bus.Message[paid]) error {
			return errors.Join(write(ctx, db, m, 1), fail(m))
		})
		for i := range 20 {
			w.save(paid{ID: id(i), Seq: i})
		}
		w.settle()
		require.Equal(t, 60, w.count("SELECT COUNT(*) FROM effect WHERE consumer <> 'External'"))
		require.Equal(t, 24, w.count("SELECT COUNT(*) FROM effect WHERE consumer = 'External'"), "at least once")
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 20}, w.statuses())
	})
}

// Promise 8: "Any number of instances may run": two publishers of one outbox and one bus in one process, and RunOnce beside them.
func TestPublishersOfOneBusInOneProcess(t *testing.T) {
	t.Parallel()
	on(t, all, func(t *testing.T, db *bun.DB) {
		w := newWorld(t, db)
		w.counting("A", bus.ConsumerConfig{})
		w.counting("B", bus.ConsumerConfig{Unordered: true})
		w.run(outbox.PublisherConfig{Poll: 20 * time.Millisecond})
		w.run(outbox.PublisherConfig{Poll: 20 * time.Millisecond})
		shared := w.publisher()
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() { _ = shared.Run(ctx) })
		}
		for i := range 100 {
			w.save(paid{ID: id(i % 3), Seq: i})
			if i%10 == 0 {
				_, err := shared.RunOnce(t.Context())
				require.NoError(t, err)
			}
		}
		w.eventually(func() bool { return w.statuses()[outbox.StatusSent] == 100 }, "all are SENT")
		cancel()
		all.Wait()
		_, err := shared.RunOnce(t.Context())
		require.NoError(t, err)
		require.NoError(t, shared.Run(ctx), "run after its end, with a context that is over")
		require.Equal(t, 200, w.effects())
		require.Zero(t, w.count("SELECT COUNT(*) FROM effect a JOIN effect b ON a.aggregate = b.aggregate AND a.id < b.id AND a.seq >= b.seq "+
			"WHERE a.consumer = 'A' AND b.consumer = 'A'"))
	})
}

// Promise 8: two processes that are alive at once under one instance name, which they must not be.
func TestProcessesOfOneNameRepeatNoEffect(t *testing.T) {
	t.Parallel()
	on(t, servers, func(t *testing.T, db *bun.DB) {
		dsn := testdb.DSN(t, testdb.Server(t, db))
		require.NoError(t, migrations.Up(t.Context(), testdb.OpenDSN(t, dsn)))
		first := newWorldOf(t, testdb.OpenDSN(t, dsn), outbox.Config{Instance: "same"}, bus.Config{})
		first.counting("A", bus.ConsumerConfig{})
		stop := first.run(outbox.PublisherConfig{})
		for i := range 60 {
			first.save(paid{ID: id(i % 4), Seq: i})
			if i%20 == 10 { // the second one starts again and again
				second := newWorldOf(t, testdb.OpenDSN(t, dsn), outbox.Config{Instance: "same"}, bus.Config{})
				second.counting("A", bus.ConsumerConfig{})
				second.run(outbox.PublisherConfig{})
			}
		}
		first.eventually(func() bool { return first.statuses()[outbox.StatusSent] == 60 }, "all are SENT")
		stop()
		require.Equal(t, 60, first.effects())
		require.Zero(t, first.count("SELECT COUNT(*) FROM effect a JOIN effect b ON a.aggregate = b.aggregate AND a.id < b.id "+
			"AND a.seq >= b.seq"))
	})
}

// Promise 2: "Hand-written rows are events too": with an id below, or far above, those that the engine has passed.
func TestHandWrittenIDsAreDelivered(t *testing.T) {
	t.Parallel()
	on(t, all, func(t *testing.T, db *bun.DB) {
		w := newWorld(t, db)
		w.counting("A", bus.ConsumerConfig{})
		for i := range 30 {
			w.save(paid{ID: id(i)})
		}
		w.exec("UPDATE bc_outbox_event SET id = id + 1000000")
		w.once()
		ids := []string{"5", "999", "1000031", "4611686018427387904", "9223372036854775000"}
		if dialect(db) != "mysql" {
			ids = append(ids, "-7", "0")
		}
		override := map[string]string{"pg": "OVERRIDING SYSTEM VALUE "}[dialect(db)]
		for _, n := range ids {
			w.exec("INSERT INTO bc_outbox_event (id, aggregate_type, aggregate_id, event_type, event_id, event_payload) "+override+"VALUES ("+n+
				", 'ORDER', 'hand', 'order.paid', ?, '{}')", "hand"+n)
		}
		w.once()
		require.Equal(t, 30+len(ids), w.effects())
		require.Equal(t, len(ids), w.count("SELECT COUNT(DISTINCT event_id) FROM effect WHERE aggregate = 'hand'"))
		if dialect(db) != "pg" { // a sequence that goes its own way
			w.save(paid{ID: "beyond"})
			w.once()
			require.Equal(t, 1, w.count("SELECT COUNT(*) FROM effect WHERE aggregate = 'beyond'"))
		}
	})
}

// "What never leaves its column": errors of databases that quote what they were given, about casts, dates, and numbers.
func TestErrorsOfCastsDoNotQuoteValues(t *testing.T) {
	t.Parallel()
	const secret = "5ecret-of-a-customer"
	statements := map[string][]string{
		"mysql": {
			"INSERT INTO effect (consumer, event_id, aggregate, seq) VALUES ('', '', '', '" + secret + "')",
			"UPDATE effect SET seq = 1 WHERE id = CAST('" + secret + "' AS SIGNED) + 0 AND SLEEP(0) = '" + secret + "'",
			"INSERT INTO typed (d) VALUES ('" + secret + "')", "INSERT INTO typed (e) VALUES ('" + secret + "')",
			"SELECT ST_GeomFromText('" + secret + "')",
			"SELECT '" + secret + "' FROM", "INSERT INTO typed (id, d) VALUES ('" + secret + "', NULL), ('" + secret + "', NULL)",
		},
		"pg": {
			"SELECT '" + secret + "'::int", "SELECT '" + secret + "'::timestamptz", "SELECT '" + secret + "'::uuid",
			"SELECT '" + secret + "'::jsonb", "SELECT ('{\"a\":\"" + secret + "\"}'::jsonb ->> 'a')::numeric",
			"SELECT '" + secret + "' FROM", "INSERT INTO typed (id) VALUES ('" + secret + "'), ('" + secret + "')",
			"SELECT '" + secret + "'::inet", "SELECT to_date('" + secret + "', 'YYYY')",
		},
		"sqlite": {
			"SELECT json('" + secret + "')", "INSERT INTO typed (id) VALUES ('" + secret + "'), ('" + secret + "')",
			"SELECT '" + secret + "' FROM",
		},
	}
	on(t, all, func(t *testing.T, db *bun.DB) {
		w := newWorld(t, db)
		w.exec("CREATE TABLE typed (id VARCHAR(64) PRIMARY KEY, d TIMESTAMP NULL" +
			map[string]string{"mysql": ", e ENUM('a', 'b')"}[dialect(db)] + ")")
		queries := statements[dialect(db)]
		bus.On(w.bus.Consumer("A", bus.ConsumerConfig{MaxAttempts: 1}), func(ctx context.Context, tx bun.Tx, m bus.Message[paid]) error {
			_, err := tx.ExecContext(ctx, queries[m.Payload.Seq])
			return err
		})
		for i := range queries {
			w.save(paid{ID: id(i), Seq: i})
			w.once()
		}
		for _, column := range []string{"l.error_message", "e.last_error", "a.error_message"} {
			for i, text := range w.column("SELECT COALESCE(" + column + ", '') FROM bc_outbox_event e JOIN bc_event_consume_log l " +
				"ON l.event_id = e.event_id LEFT JOIN bc_delivery_attempt a ON a.event_id = e.event_id ORDER BY e.id") {
				require.NotContains(t, text, secret, "%s %s", column, queries[min(i, len(queries)-1)])
			}
		}
	})
}

// Promise 4: "Other aggregates never wait", and names: hand-written aggregates that differ by a blank at the end. MySQL and
// MariaDB compare texts without the blanks at their ends: there such aggregates, which Save refuses, share one order.
func TestHandWrittenAggregatesThatDifferByABlank(t *testing.T) {
	t.Parallel()
	on(t, all, func(t *testing.T, db *bun.DB) {
		w := newWorld(t, db)
		bus.On(w.bus.Consumer("A", bus.ConsumerConfig{}), func(ctx context.Context, tx bun.Tx, m bus.Message[paid]) error {
			if m.AggregateID == "7" {
				return bus.Permanent(errors.New("no"))
			}
			return write(ctx, tx, m, 1)
		})
		for i, aggregate := range []string{"7", "7 ", "7  ", "7\t", " 7", "７"} {
			w.exec("INSERT INTO bc_outbox_event (aggregate_type, aggregate_id, event_type, event_id, event_payload) "+
				"VALUES ('ORDER', ?, 'order.paid', ?, '{}')", aggregate, fmt.Sprint("event ", i))
		}
		w.once()
		w.once()
		t.Log(testdb.Server(t, db), w.column("SELECT status FROM bc_outbox_event ORDER BY id"),
			w.column("SELECT COALESCE(last_error, '') FROM bc_outbox_event ORDER BY id"))
		require.Equal(t, 1, w.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE status = 'DEAD' AND error_message = 'no'"))
		waiting := map[string]int{"mysql": 2}[dialect(db)]
		require.Equal(t, waiting, w.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE status = 'PENDING'"),
			"those that wait for another aggregate")
	})
}
