package attempts_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/outbox"
)

// Promise 6: "An event that cannot be delivered becomes DEAD"; promise 4: "Other aggregates never wait for it". A constraint
// that the database looks at only when the transaction commits refuses one event of many.
func TestCommitThatADeferredConstraintRefusesFailsThatEventAlone(t *testing.T) {
	t.Parallel()
	on(t, []string{"sqlite", "postgres"}, func(t *testing.T, db *bun.DB) {
		w := newWorld(t, db)
		w.exec("CREATE TABLE parent (id INT PRIMARY KEY)")
		w.exec("CREATE TABLE child (id INT REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED)")
		w.exec("INSERT INTO parent VALUES (1)")
		bus.On(w.bus.Consumer("Deferred", bus.ConsumerConfig{MaxAttempts: 2}), func(ctx context.Context, tx bun.Tx, m bus.Message[paid]) error {
			if _, err := tx.ExecContext(ctx, "INSERT INTO child VALUES (?)", m.Payload.Seq); err != nil {
				return err
			}
			return write(ctx, tx, m, m.Payload.Seq)
		})
		w.counting("Other", bus.ConsumerConfig{})
		for i := range 10 {
			seq := 1
			if i == 4 {
				seq = 2 // it has no parent
			}
			w.save(paid{ID: id(i), Seq: seq})
		}
		w.settle()
		require.Equal(t, map[consumelog.Status]int{consumelog.Success: 19, consumelog.Dead: 1}, w.deliveries())
		require.Equal(t, 19, w.effects())
		require.Equal(t, 9, w.count("SELECT COUNT(*) FROM child"))
		w.save(paid{ID: "after", Seq: 1})
		w.settle()
		require.Equal(t, 21, w.effects())
	})
}

// Promise 3: "an error that the handler swallows cannot leave an effect without its row". SQLite ends the whole transaction by
// INSERT OR ROLLBACK, and what the handler writes after that would be committed at once.
func TestTransactionThatAStatementHasEndedTakesNothingMore(t *testing.T) {
	t.Parallel()
	on(t, []string{"sqlite"}, func(t *testing.T, db *bun.DB) {
		w := newWorld(t, db)
		w.exec("CREATE TABLE seen (id VARCHAR(64) PRIMARY KEY)")
		w.exec("INSERT INTO seen VALUES ('order-0')")
		bus.On(w.bus.Consumer("A", bus.ConsumerConfig{MaxAttempts: 3}), func(ctx context.Context, tx bun.Tx, m bus.Message[paid]) error {
			if _, err := tx.ExecContext(ctx, "INSERT OR ROLLBACK INTO seen VALUES (?)", m.AggregateID); err == nil {
				return errors.New("it should be refused")
			}
			_ = write(ctx, tx, m, 1) // it goes on as if it still had its transaction
			return nil
		})
		w.save(paid{ID: id(0)})
		w.settle()
		require.Equal(t, map[consumelog.Status]int{consumelog.Dead: 1}, w.deliveries())
		require.Zero(t, w.effects(), "effects of a delivery that never succeeded")
	})
}

// Promise 3, the same sentence: a statement is interrupted by a time limit of the handler's own, and the handler goes on.
func TestInterruptedStatementLeavesNoEffectWithoutItsRow(t *testing.T) {
	t.Parallel()
	slow := map[string]string{
		"sqlite": "INSERT INTO big SELECT n FROM (WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM c WHERE n < 1e9) SELECT n FROM c)",
		"mysql":  "INSERT INTO big SELECT SLEEP(0.5)",
		"pg":     "INSERT INTO big SELECT 1 FROM pg_sleep(0.5)",
	}
	on(t, all, func(t *testing.T, db *bun.DB) {
		w := newWorld(t, db)
		w.exec("CREATE TABLE big (n INT)")
		bus.On(w.bus.Consumer("A", bus.ConsumerConfig{MaxAttempts: 2}), func(ctx context.Context, tx bun.Tx, m bus.Message[paid]) error {
			if err := write(ctx, tx, m, 1); err != nil {
				return err
			}
			limited, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
			defer cancel()
			if _, err := tx.ExecContext(limited, slow[dialect(db)]); err == nil {
				return errors.New("it should be interrupted")
			}
			_ = write(ctx, tx, m, 2)
			return nil
		})
		w.save(paid{ID: id(0)})
		w.settle()
		want := map[string]int{"SUCCESS": 2, "DEAD": 0}[w.column("SELECT status FROM bc_event_consume_log")[0]]
		require.Equal(t, want, w.effects(), "effects and row belong together")
	})
}

// Promise 3: "takes effect exactly once". Statements of MySQL that commit by themselves end the transaction in the middle.
func TestStatementThatCommitsByItselfIsRefused(t *testing.T) {
	t.Parallel()
	statements := []string{"CREATE TABLE made (id INT)", "TRUNCATE TABLE other", "BEGIN", "LOCK TABLES other WRITE"}
	statements = append(statements, "ALTER TABLE other ADD COLUMN x INT", "  /* a comment */ DROP TABLE other", "SET autocommit = 1",
		"SET STATEMENT max_statement_time = 9 FOR TRUNCATE TABLE other", "/*M!100100 TRUNCATE TABLE other */", "LOAD INDEX INTO CACHE other")
	on(t, mysqls, func(t *testing.T, db *bun.DB) {
		w := newWorld(t, db)
		w.exec("CREATE TABLE other (id INT)")
		var failing atomic.Bool
		failing.Store(true)
		bus.On(w.bus.Consumer("A", bus.ConsumerConfig{MaxAttempts: 2}), func(ctx context.Context, tx bun.Tx, m bus.Message[paid]) error {
			if err := write(ctx, tx, m, 1); err != nil {
				return err
			}
			if _, err := tx.ExecContext(ctx, statements[m.Payload.Seq]); err != nil {
				return err
			}
			return errors.New("and fails after it")
		})
		for i := range statements {
			w.save(paid{ID: id(i), Seq: i})
		}
		w.settle()
		require.Equal(t, map[consumelog.Status]int{consumelog.Dead: len(statements)}, w.deliveries())
		require.Zero(t, w.effects(), "what failed has no effect")
	})
}

// Promise 3, once more: COMMIT AND CHAIN leaves a transaction open, so that the last COMMIT works.
func TestCommitAndChainLeavesOneEffect(t *testing.T) {
	t.Parallel()
	on(t, servers, func(t *testing.T, db *bun.DB) {
		w := newWorld(t, db)
		bus.On(w.bus.Consumer("A", bus.ConsumerConfig{MaxAttempts: 3}), func(ctx context.Context, tx bun.Tx, m bus.Message[paid]) error {
			if err := write(ctx, tx, m, 1); err != nil {
				return err
			}
			if _, err := tx.ExecContext(ctx, "COMMIT AND CHAIN"); err != nil {
				return err
			}
			return errors.New("and fails after it")
		})
		w.save(paid{ID: id(0)})
		w.settle()
		require.LessOrEqual(t, w.effects(), 1)
		require.Len(t, w.deliveries(), 1)
	})
}

// Promise 3: a handler leaves the result of a query open when it returns.
func TestRowsLeftOpenByAHandlerDoNotDoubleIt(t *testing.T) {
	t.Parallel()
	on(t, all, func(t *testing.T, db *bun.DB) {
		w := newWorld(t, db)
		bus.On(w.bus.Consumer("A", bus.ConsumerConfig{MaxAttempts: 2}), func(ctx context.Context, tx bun.Tx, m bus.Message[paid]) error {
			if err := write(ctx, tx, m, 1); err != nil {
				return err
			}
			rows, err := tx.QueryContext(ctx, "SELECT id FROM effect") //nolint:rowserrcheck,sqlclosecheck // that is the attempt
			if err == nil {
				rows.Next()
			}
			return err
		})
		for i := range 5 {
			w.save(paid{ID: id(i)})
		}
		w.settle()
		require.Equal(t, w.deliveries()[consumelog.Success], w.effects())
		require.Equal(t, 5, w.deliveries()[consumelog.Success]+w.deliveries()[consumelog.Dead])
	})
}

// Promise 3: a handler keeps its tx, and writes through it when it has long returned.
func TestTransactionKeptByAHandlerIsOfNoUseLater(t *testing.T) {
	t.Parallel()
	on(t, all, func(t *testing.T, db *bun.DB) {
		w := newWorld(t, db)
		var mu sync.Mutex
		var kept []bun.Tx
		bus.On(w.bus.Consumer("A", bus.ConsumerConfig{}), func(ctx context.Context, tx bun.Tx, m bus.Message[paid]) error {
			mu.Lock()
			kept = append(kept, tx)
			mu.Unlock()
			return write(ctx, tx, m, 1)
		})
		for i := range 5 {
			w.save(paid{ID: id(i)})
		}
		w.once()
		for _, tx := range kept {
			_, err := tx.ExecContext(t.Context(), "INSERT INTO effect (consumer, event_id, aggregate, seq) VALUES ('late', 'x', 'x', 2)")
			require.Error(t, err)
			require.Error(t, w.ob.Save(t.Context(), tx, paid{ID: "late"}))
			require.Error(t, tx.Commit())
		}
		require.Equal(t, 5, w.effects())
		require.Equal(t, 5, w.count("SELECT COUNT(*) FROM bc_outbox_event"))
	})
}

// Promise 3: goroutines of a handler share its tx, some of them longer than the handler.
func TestGoroutinesOfAHandlerShareItsTransaction(t *testing.T) {
	t.Parallel()
	on(t, all, func(t *testing.T, db *bun.DB) {
		w := newWorld(t, db)
		var late sync.WaitGroup
		bus.On(w.bus.Consumer("A", bus.ConsumerConfig{Batch: 1}), func(ctx context.Context, tx bun.Tx, m bus.Message[paid]) error {
			errs := make(chan error, 4)
			for range 4 {
				go func() { errs <- write(ctx, tx, m, 1) }()
			}
			var all error
			for range 4 {
				all = errors.Join(all, <-errs)
			}
			late.Go(func() { _ = write(ctx, tx, m, 2) }) // it may be in time or not
			return all
		})
		for i := range 20 {
			w.save(paid{ID: id(i)})
		}
		w.settle()
		late.Wait()
		require.Equal(t, map[consumelog.Status]int{consumelog.Success: 20}, w.deliveries())
		require.Equal(t, 80, w.count("SELECT COUNT(*) FROM effect WHERE seq = 1"))
		require.Zero(t, w.count("SELECT COUNT(*) FROM (SELECT event_id FROM effect WHERE seq = 2 GROUP BY event_id HAVING COUNT(*) > 1) x"))
	})
}

// Promise 3: an error that a handler has got over by a savepoint of its own is no failure.
func TestErrorWithinASavepointOfTheHandlerIsItsOwnBusiness(t *testing.T) {
	t.Parallel()
	on(t, all, func(t *testing.T, db *bun.DB) {
		w := newWorld(t, db)
		w.exec("CREATE TABLE seen (id VARCHAR(64) PRIMARY KEY)")
		w.exec("INSERT INTO seen VALUES ('order-3')")
		bus.On(w.bus.Consumer("A", bus.ConsumerConfig{MaxAttempts: 1}), func(ctx context.Context, tx bun.Tx, m bus.Message[paid]) error {
			err := tx.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
				_, err := tx.ExecContext(ctx, "INSERT INTO seen VALUES (?)", m.AggregateID)
				return err
			})
			if known := m.AggregateID == id(3); (err != nil) != known {
				return fmt.Errorf("known %t: %w", known, err)
			}
			return write(ctx, tx, m, 1)
		})
		for i := range 10 {
			w.save(paid{ID: id(i)})
		}
		w.settle()
		require.Equal(t, map[consumelog.Status]int{consumelog.Success: 10}, w.deliveries())
		require.Equal(t, 10, w.effects())
	})
}

// Promise 3: a handler creates a temporary table that has the name of the consume log, and hides it from its session.
func TestTemporaryTableThatHidesTheLogDoublesNothing(t *testing.T) {
	t.Parallel()
	on(t, all, func(t *testing.T, db *bun.DB) {
		w := newWorld(t, db)
		db.SetMaxOpenConns(3)
		db.SetMaxIdleConns(3)
		hide := "CREATE TEMPORARY TABLE bc_event_consume_log AS SELECT * FROM bc_event_consume_log WHERE 1 = 0"
		if dialect(db) == "mysql" {
			hide = "CREATE TEMPORARY TABLE bc_event_consume_log LIKE bc_event_consume_log"
		}
		var hidden atomic.Int64
		bus.On(w.bus.Consumer("A", bus.ConsumerConfig{MaxAttempts: 20, Batch: 1}),
			func(ctx context.Context, tx bun.Tx, m bus.Message[paid]) error {
				if m.Payload.Seq == 1 && hidden.Add(1) == 1 {
					if _, err := tx.ExecContext(ctx, hide); err != nil {
						return err
					}
				}
				return write(ctx, tx, m, 1)
			})
		for i := range 12 {
			w.save(paid{ID: id(i), Seq: i})
		}
		w.settle()
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 12}, w.statuses())
		require.Equal(t, 12, w.effects())
	})
}

// Promise 3: handlers of one aggregate that begin a transaction of their own beside the one they have.
func TestHandlerThatOpensItsOwnTransactionOnTheSameAggregate(t *testing.T) {
	t.Parallel()
	on(t, servers, func(t *testing.T, db *bun.DB) {
		w := newWorld(t, db)
		var order sync.Map
		bus.On(w.bus.Consumer("A", bus.ConsumerConfig{}), func(ctx context.Context, tx bun.Tx, m bus.Message[paid]) error {
			if m.Payload.Seq < 3 {
				next := paid{ID: m.AggregateID, Seq: m.Payload.Seq + 1}
				if err := db.RunInTx(ctx, nil, func(ctx context.Context, own bun.Tx) error { return w.ob.Save(ctx, own, next) }); err != nil {
					return err
				}
			}
			if was, ok := order.Swap(m.AggregateID, m.Payload.Seq); ok && was.(int) != m.Payload.Seq-1 {
				return bus.Permanent(fmt.Errorf("%d after %d", m.Payload.Seq, was))
			}
			return write(ctx, tx, m, m.Payload.Seq)
		})
		for i := range 10 {
			w.save(paid{ID: id(i)})
		}
		w.settle()
		require.Equal(t, map[consumelog.Status]int{consumelog.Success: 40}, w.deliveries())
		require.Equal(t, 40, w.effects())
	})
}

// Promise 4: "sees the events of one aggregate in commit order": handlers save what follows in the same aggregate, in the same
// transaction, while others save to it from outside.
func TestFollowUpOfTheSameAggregateComesAfterItsCause(t *testing.T) {
	t.Parallel()
	on(t, all, func(t *testing.T, db *bun.DB) {
		w := newWorld(t, db)
		c := w.bus.Consumer("A", bus.ConsumerConfig{})
		bus.On(c, func(ctx context.Context, tx bun.Tx, m bus.Message[paid]) error {
			if err := w.ob.Save(ctx, tx, shipped{ID: m.AggregateID, Seq: m.Payload.Seq}); err != nil {
				return err
			}
			return write(ctx, tx, m, m.Payload.Seq)
		})
		bus.On(c, func(ctx context.Context, tx bun.Tx, m bus.Message[shipped]) error {
			return write(ctx, tx, m, 1000+m.Payload.Seq)
		})
		w.run(outbox.PublisherConfig{})
		for seq := range 20 {
			for i := range 3 {
				w.save(paid{ID: id(i), Seq: seq})
			}
		}
		w.eventually(func() bool { return w.effects() == 120 }, "all effects")
		for i := range 3 {
			var want []string
			for seq := range 20 {
				want = append(want, fmt.Sprint(seq))
			}
			require.Equal(t, want, w.column("SELECT seq FROM effect WHERE aggregate = ? AND seq < 1000 ORDER BY id", id(i)),
				"saved one after the other")
			require.Equal(t, want, w.column("SELECT seq - 1000 FROM effect WHERE aggregate = ? AND seq >= 1000 ORDER BY id", id(i)),
				"saved by handlers one after the other")
			require.Zero(t, w.count("SELECT COUNT(*) FROM effect a JOIN effect b ON a.aggregate = b.aggregate AND b.seq = a.seq + 1000 "+
				"AND b.id < a.id"), "before its cause")
		}
	})
}
