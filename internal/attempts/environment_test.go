package attempts_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/mysqldialect"
	"github.com/uptrace/bun/dialect/pgdialect"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/dbserver"
	"github.com/bluecone-go/bluecone/internal/faultdb"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/migrations"
	"github.com/bluecone-go/bluecone/outbox"
	"github.com/bluecone-go/bluecone/reaper"
)

// hooked opens the database of an address so that the hook sees every statement.
func hooked(t *testing.T, dsn string, h faultdb.Hook) *bun.DB {
	t.Helper()
	u, err := url.Parse(dsn)
	require.NoError(t, err)
	var c driver.Connector
	if u.Scheme == "mysql" {
		c, err = mysql.NewConnector(dbserver.MySQLConfig(u))
		require.NoError(t, err)
	} else {
		cfg, err := pgx.ParseConfig(dsn)
		require.NoError(t, err)
		c = stdlib.GetConnector(*cfg)
	}
	p := sql.OpenDB(faultdb.Wrap(c, h))
	p.SetMaxOpenConns(12)
	p.SetMaxIdleConns(12)
	t.Cleanup(func() { _ = p.Close() })
	if u.Scheme == "mysql" {
		return bun.NewDB(p, mysqldialect.New())
	}
	return bun.NewDB(p, pgdialect.New())
}

// Promise 8 and 3: the database server is killed, and started again, at a claim, at the mark of a delivery, in a handler, before
// and after COMMIT, and when the event is settled.
func TestServerKilledInEveryPhaseRepeatsNothing(t *testing.T) {
	t.Parallel()
	phases := map[string]func(s faultdb.Step, after bool) bool{
		"claim": func(s faultdb.Step, after bool) bool {
			return after && has(s, "status = 'DISPATCHING', locked_by")
		},
		"mark":   func(s faultdb.Step, after bool) bool { return after && has(s, "INSERT INTO bc_event_consume_log") },
		"handle": func(s faultdb.Step, after bool) bool { return !after && has(s, "INSERT INTO effect") },
		"verify": func(s faultdb.Step, after bool) bool { return after && has(s, "INSERT INTO effect") },
		"settle": func(s faultdb.Step, after bool) bool {
			return !after && has(s, "SENT") && has(s, "UPDATE bc_outbox_event")
		},
	}
	for _, name := range testdb.Servers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv, err := dbserver.Start(name, dbserver.Durable)
			if err != nil {
				testdb.Unavailable(t, name, err)
			}
			t.Cleanup(srv.Stop)
			var armed atomic.Pointer[func(s faultdb.Step, after bool) bool]
			hit := func(after bool) func(context.Context, faultdb.Step) error {
				return func(_ context.Context, s faultdb.Step) error {
					if p := armed.Load(); p != nil && (*p)(s, after) && armed.CompareAndSwap(p, nil) {
						srv.Kill()
						if err := srv.Restart(); err != nil {
							t.Error(err)
						}
					}
					return nil
				}
			}
			admin := testdb.OpenDSN(t, srv.URL.String())
			_, err = admin.ExecContext(t.Context(), "CREATE DATABASE attempts")
			require.NoError(t, err)
			u := *srv.URL
			u.Path = "/attempts"
			require.NoError(t, migrations.Up(t.Context(), testdb.OpenDSN(t, u.String())))
			w := newWorld(t, hooked(t, u.String(), faultdb.Hook{Before: hit(false), After: hit(true)}))
			watch := &world{t: t, db: testdb.OpenDSN(t, u.String()), ob: w.ob}
			w.counting("A", bus.ConsumerConfig{})
			w.run(outbox.PublisherConfig{Lease: 3 * time.Second})
			saved := 0
			for phase, at := range phases {
				armed.Store(&at)
				for range 6 {
					require.NoError(t, insistently(func() error { return watch.trySave(paid{ID: id(saved % 3), Seq: saved}) }))
					saved++
				}
				watch.eventually(func() bool {
					var sent, all int
					err := watch.db.QueryRowContext(context.Background(),
						"SELECT COUNT(CASE WHEN status = 'SENT' THEN 1 END), COUNT(*) FROM bc_outbox_event").Scan(&sent, &all)
					return err == nil && sent == all && all >= saved
				}, phase)
				require.Nil(t, armed.Load(), "%s never came", phase)
			}
			require.Equal(t, watch.count("SELECT COUNT(*) FROM bc_outbox_event"), watch.effects(), "each once")
			require.Zero(t, watch.count("SELECT COUNT(*) FROM effect a JOIN effect b ON a.aggregate = b.aggregate AND a.id < b.id "+
				"AND a.seq > b.seq"), "out of order")
		})
	}
}

func has(s faultdb.Step, text string) bool { return strings.Contains(s.Query, text) }

// insistently tries while the server restarts. A Save whose COMMIT nobody knows of may come twice, as two events of one number.
func insistently(do func() error) (err error) {
	for over := time.Now().Add(testdb.Patience()); time.Now().Before(over); <-time.After(20 * time.Millisecond) {
		if err = do(); err == nil {
			return nil
		}
	}
	return err
}

// Promise 8: "loses nothing and repeats no transactional effect": the context of a run ends at every one of its steps.
func TestRunThatEndsAtAnyStepLosesNothing(t *testing.T) {
	t.Parallel()
	on(t, servers, func(t *testing.T, db *bun.DB) {
		dsn := testdb.DSN(t, testdb.Server(t, db))
		require.NoError(t, migrations.Up(t.Context(), testdb.OpenDSN(t, dsn)))
		var step, end atomic.Int64
		var cancel atomic.Pointer[context.CancelFunc]
		hook := func(context.Context, faultdb.Step) error {
			if c := cancel.Load(); c != nil && step.Add(1) == end.Load() {
				(*c)()
			}
			return nil
		}
		w := newWorld(t, hooked(t, dsn, faultdb.Hook{Before: hook, After: hook}))
		w.counting("A", bus.ConsumerConfig{})
		w.counting("B", bus.ConsumerConfig{})
		w.once()
		p := w.publisher()
		saved := 0
		for n := int64(1); ; n++ {
			for range 2 {
				w.save(paid{ID: id(saved % 3), Seq: saved})
				saved++
			}
			ctx, stop := context.WithCancel(t.Context())
			step.Store(0)
			end.Store(n)
			cancel.Store(&stop)
			_, _ = p.RunOnce(ctx) // it may say that it was ended
			cancel.Store(nil)
			ended := ctx.Err() != nil
			stop()
			if !ended {
				break
			}
		}
		t.Logf("%d events", saved)
		w.settle()
		require.Equal(t, 2*saved, w.effects())
		require.Zero(t, w.count("SELECT COUNT(*) FROM effect a JOIN effect b ON a.aggregate = b.aggregate AND a.consumer = b.consumer "+
			"AND a.id < b.id AND a.seq >= b.seq"), "out of order")
	})
}

// "A table that is lost while it runs is an outage": tables are renamed under the engine, and back.
func TestTablesRenamedAndBackCostNoAttempt(t *testing.T) {
	t.Parallel()
	on(t, all, func(t *testing.T, db *bun.DB) {
		w := newWorld(t, db)
		w.counting("A", bus.ConsumerConfig{})
		w.run(outbox.PublisherConfig{Poll: 20 * time.Millisecond})
		w.save(paid{ID: "first"})
		w.eventually(func() bool { return w.statuses()[outbox.StatusSent] == 1 }, "the first")
		for round, table := range []string{"bc_event_consume_log", "bc_consumer"} {
			w.exec("ALTER TABLE " + table + " RENAME TO aside")
			for i := range 5 {
				w.save(paid{ID: id(i), Seq: round})
			}
			over := time.Now().Add(time.Second)
			for time.Now().Before(over) && w.count("SELECT COUNT(*) FROM bc_outbox_event WHERE status = 'DISPATCHING'") == 0 {
				<-time.After(10 * time.Millisecond)
			}
			w.exec("ALTER TABLE aside RENAME TO " + table)
			w.eventually(func() bool { return w.statuses()[outbox.StatusSent] == 1+5*(round+1) }, table)
		}
		require.Equal(t, 11, w.effects())
		require.Zero(t, w.count("SELECT COUNT(*) FROM bc_delivery_attempt WHERE outcome IN ('FAILED', 'DEAD')"))
	})
}

// Doc of migrations: "Up may be called by any number of processes at once": by three, again and again, while events flow, beside
// changes of the user's own tables.
func TestMigrationsAndDDLWhileEventsFlow(t *testing.T) {
	t.Parallel()
	on(t, all, func(t *testing.T, db *bun.DB) {
		w := newWorld(t, db)
		w.counting("A", bus.ConsumerConfig{})
		w.run(outbox.PublisherConfig{Poll: 50 * time.Millisecond})
		var busy sync.WaitGroup
		for range 3 {
			busy.Go(func() {
				for range 3 {
					if err := migrations.Up(t.Context(), db); err != nil {
						t.Error(err)
					}
				}
			})
		}
		for i := range 60 {
			w.save(paid{ID: id(i % 5), Seq: i})
			if i%20 == 0 {
				w.exec(fmt.Sprintf("ALTER TABLE effect ADD COLUMN extra%d INT", i))
			}
		}
		busy.Wait()
		w.eventually(func() bool { return w.statuses()[outbox.StatusSent] == 60 }, "all are SENT")
		require.Equal(t, 60, w.effects())
		require.Zero(t, w.count("SELECT COUNT(*) FROM effect a JOIN effect b ON a.aggregate = b.aggregate AND a.id < b.id AND a.seq >= b.seq"))
	})
}

// "No event of the owner commits between the reaper's question about events and the release": a guard that looks before it locks,
// so that its transaction may have an old view.
func TestGuardThatLooksBeforeItLocksReleasesNoPaidLock(t *testing.T) {
	t.Parallel()
	on(t, servers, func(t *testing.T, db *bun.DB) {
		w := newWorld(t, db)
		w.counting("Wallet", bus.ConsumerConfig{})
		w.once()
		w.exec("CREATE TABLE orders (id VARCHAR(64) PRIMARY KEY, state VARCHAR(20) NOT NULL)")
		w.exec("CREATE TABLE frozen (id VARCHAR(64) PRIMARY KEY, state VARCHAR(20) NOT NULL)")
		w.exec("INSERT INTO orders VALUES ('7', 'WAIT_PAY')")
		w.exec("INSERT INTO frozen VALUES ('7', 'FROZEN')")
		payer, err := db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		_, err = payer.ExecContext(t.Context(), "UPDATE orders SET state = 'PAYING' WHERE id = '7'")
		require.NoError(t, err)
		require.NoError(t, w.ob.Save(t.Context(), payer, paid{ID: "7"}))
		looked := make(chan struct{})
		r, err := reaper.New(db, w.ob, reaper.Config{Logger: logger()}, reaper.Task{
			Name: "wallet.freeze", Consumer: "Wallet", TTL: time.Minute,
			Owner: &reaper.Owner{Guard: func(ctx context.Context, tx bun.Tx, a reaper.Aggregate) (bool, error) {
				var state string
				if err := tx.QueryRowContext(ctx, "SELECT state FROM orders WHERE id = ?", a.ID).Scan(&state); err != nil {
					return false, err
				}
				close(looked)
				return true, tx.QueryRowContext(ctx, "SELECT state FROM orders WHERE id = ? FOR UPDATE", a.ID).Scan(&state)
			}},
			Find: func(_ context.Context, _ bun.IDB, q reaper.Query) ([]reaper.Lock, error) {
				if q.After != "" {
					return nil, nil
				}
				return []reaper.Lock{{ID: "7", AggregateType: "ORDER", AggregateID: "7", Age: time.Hour}}, nil
			},
			Release: func(ctx context.Context, tx bun.Tx, l reaper.Lock) (bool, error) {
				res, err := tx.ExecContext(ctx, "UPDATE frozen SET state = 'FREE' WHERE id = ? AND state = 'FROZEN'", l.ID)
				if err != nil {
					return false, err
				}
				n, err := res.RowsAffected()
				return n == 1, err
			},
		})
		require.NoError(t, err)
		type answer struct {
			report reaper.Report
			err    error
		}
		done := make(chan answer, 1)
		go func() { report, err := r.RunOnce(t.Context()); done <- answer{report, err} }()
		w.wait(looked, "the guard")
		require.NoError(t, payer.Commit())
		a := <-done
		require.NoError(t, a.err)
		require.EqualValues(t, 1, a.report.Held, "%+v", a.report)
		require.Equal(t, []string{"FROZEN"}, w.column("SELECT state FROM frozen"))
	})
}
