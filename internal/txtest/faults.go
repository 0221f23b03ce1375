package txtest

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/bustest"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/dbserver"
	"github.com/bluecone-go/bluecone/internal/faultdb"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

// eachFault delivers among the faults of the kit: the effect of each event happens once, although everything is delivered twice.
func eachFault[T any](t *testing.T, a Adapter[T], database string) {
	t.Helper()
	all := []bustest.Fault{
		bustest.FailBeforeCommit, bustest.FailAfterCommit, bustest.LoseLease, bustest.HandlerError, bustest.HandlerPanic, bustest.Duplicate,
		bustest.Reorder,
	}
	each(t, database+"/exactly once among faults", a, database, func(w *World, d Door[T]) {
		h := bustest.New(w.T, w.DB)
		w.Outbox, w.Bus = h.Outbox, h.Bus
		d.counting(w.Bus, "A", bus.ConsumerConfig{})
		d.OnBatch(w.Bus.Consumer("B", bus.ConsumerConfig{}), func(ctx context.Context, tx T, ms []bus.Message[Paid]) error {
			for _, m := range ms {
				if err := d.write(ctx, tx, m, m.Payload.Seq); err != nil {
					return err
				}
			}
			return nil
		})
		sets := [][]bustest.Fault{all, {bustest.FailBeforeCommit, bustest.FailAfterCommit}}
		for _, f := range all {
			sets = append(sets, []bustest.Fault{f})
		}
		for round, faults := range sets {
			h.Break(faults...)
			tx := d.begin(w)
			for i := range 4 {
				require.NoError(w.T, d.Save(w.T.Context(), w.Outbox, tx, Paid{Order: fmt.Sprint(i % 3), Seq: round}))
			}
			require.NoError(w.T, d.Commit(w.T.Context(), tx))
			require.Equal(w.T, bustest.Report{consumelog.Success: 8 * (round + 1)}, h.Drain(), "faults %v", faults)
			require.Equal(w.T, 8, w.effects(round), "faults %v", faults)
			require.Equal(w.T, 8, w.count("SELECT COUNT(*) FROM (SELECT DISTINCT consumer, event_id FROM effect WHERE seq = ?) x", round))
		}
	})
}

// survivesCuts breaks the connection before and after each step of a delivery in turn, also in the middle of the handler and at its
// COMMIT, of which nobody knows then whether it happened.
func survivesCuts[T any](w *World, d Door[T]) {
	if w.Dialect() == "sqlite" {
		return // a file has no connection that breaks
	}
	var left atomic.Int64
	hook := func(context.Context, faultdb.Step) error {
		if left.Add(-1) == 0 {
			return faultdb.ErrCut
		}
		return nil
	}
	broken := *w
	broken.DB = w.hooked(faultdb.Hook{Before: hook, After: hook})
	broken.restart()
	d.counting(broken.Bus, "A", bus.ConsumerConfig{MaxAttempts: 3})
	isOver := false
	for step := 1; !isOver; step++ {
		w.save(Paid{Order: fmt.Sprint(step), Seq: step})
		left.Store(int64(step))
		// A server may notice late that a connection is gone, and keeps its locks until then.
		for began := time.Now(); w.count("SELECT COUNT(*) FROM bc_outbox_event WHERE status = 'SENT'") < step; {
			require.Less(w.T, time.Since(began), testdb.Patience(), "step %d: %s", step, w.errors())
			p, err := broken.publisher()
			require.NoError(w.T, err)
			_, _ = p.RunOnce(context.Background()) // it says that the connection was cut
			isOver = left.Load() > 0               // there are no more steps
			w.hurry()
		}
		require.Equal(w.T, 1, w.effects(step), "step %d", step)
	}
	w.T.Logf("cut at each of %d steps", w.events()-1)
}

// hooked opens the database so that a hook is called around every statement.
func (w *World) hooked(h faultdb.Hook) *bun.DB {
	w.T.Helper()
	u, err := url.Parse(w.DSN)
	require.NoError(w.T, err)
	var c driver.Connector
	if w.Dialect() == "mysql" {
		cfg := dbserver.MySQLConfig(u)
		cfg.Logger = &mysql.NopLogger{} // it would tell of each cut
		c, err = mysql.NewConnector(cfg)
		require.NoError(w.T, err)
	} else {
		cfg, err := pgx.ParseConfig(w.DSN)
		require.NoError(w.T, err)
		c = stdlib.GetConnector(*cfg)
	}
	pool := sql.OpenDB(faultdb.Wrap(c, h))
	pool.SetMaxOpenConns(8)
	w.T.Cleanup(func() { _ = pool.Close() })
	return bun.NewDB(pool, w.DB.Dialect())
}
