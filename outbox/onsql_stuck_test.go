package outbox_test

import (
	"context"
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

// A handler that ignores its ended context is abandoned, and the lane goes on. The prepared statement that it still has writes
// nothing any more.
func TestOnSQLStuckHandlerIsAbandoned(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		gate, late := make(chan struct{}), make(chan error, 1)
		release := sync.OnceFunc(func() { close(gate) })
		defer release()
		bus.OnSQL(f.bus.Consumer("Stuck", bus.ConsumerConfig{Timeout: 3 * time.Second, Concurrency: 1, Batch: 1}),
			func(ctx context.Context, tx bus.Tx, m bus.Message[orderPaid]) error {
				stmt, err := tx.PrepareContext(ctx, f.native(insertEffect))
				if err != nil {
					return err
				}
				defer stmt.Close()
				if _, err := stmt.ExecContext(ctx, m.Consumer, m.ID, m.AggregateID, 1); err != nil {
					return err
				}
				if m.AggregateID == "stuck" {
					<-gate
					_, err = stmt.ExecContext(context.WithoutCancel(ctx), m.Consumer, m.ID, m.AggregateID, 2)
					late <- err
				}
				return nil
			})
		f.save(orderPaid{OrderID: "stuck"}, orderPaid{OrderID: "next"})
		f.once()
		require.Equal(t, map[consumelog.Status]int{consumelog.Failed: 1, consumelog.Success: 1}, f.deliveries())
		release()
		require.Error(t, <-late, "its transaction is over")
		require.Equal(t, "next 1", f.texts("SELECT CONCAT(aggregate, ' ', seq) FROM effect"))
	})
}

// The handler's own time limit interrupts a write, and the handler goes on: the write has ended the transaction, or the connection,
// so nothing of that run takes effect.
func TestOnSQLInterruptedWriteNeverCommits(t *testing.T) {
	t.Parallel()
	slow := map[string]string{
		"sqlite": "INSERT INTO big SELECT n FROM (WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM c WHERE n < 1e9) SELECT n FROM c)",
		"mysql":  "INSERT INTO big SELECT SLEEP(0.5)", // it is not ended with its connection, and keeps its locks so long
		"pg":     "INSERT INTO big SELECT 1 FROM pg_sleep(0.5)",
	}
	for _, way := range []string{"Exec", "Stmt"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			testdb.Each(t, func(t *testing.T, db *bun.DB) {
				f := newFixture(t, db)
				f.exec("CREATE TABLE big (n INT)")
				query := slow[db.Dialect().Name().String()]
				runs, refused := f.careless("A", func(ctx context.Context, tx bus.Tx) error {
					for ctx.Err() == nil { // the limit may pass before the statement is sent, which ends nothing
						limited, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
						err := swallows[way](limited, tx, query)
						cancel()
						if _, over := tx.ExecContext(ctx, "SELECT 1"); over != nil {
							return err
						}
					}
					return nil
				})
				f.save(orderPaid{OrderID: "1"})
				f.once()
				if db.Dialect().Name().String() != "sqlite" {
					f.requireSecondRun(runs, refused)
					return
				}
				require.Equal(t, map[consumelog.Status]int{consumelog.Failed: 1}, f.deliveries(), "SQLite ended it: a counted attempt")
				f.hurry()
				f.once()
				require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 1}, f.statuses())
				require.Equal(t, "2", f.texts("SELECT CONCAT(seq, '') FROM effect"))
			})
		})
	}
}
