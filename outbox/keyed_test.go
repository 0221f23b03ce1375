package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"golang.org/x/sync/errgroup"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// open begins a transaction that ends with the test.
func (f *fixture) open(iso sql.IsolationLevel) bun.Tx {
	f.t.Helper()
	tx, err := f.db.BeginTx(context.Background(), &sql.TxOptions{Isolation: iso})
	require.NoError(f.t, err)
	f.t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

// saveSoon saves what must not wait for anybody's transaction.
func (f *fixture) saveSoon(why string, events ...bus.Event) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), testdb.Patience())
	defer cancel()
	require.NoError(f.t, f.db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error { return f.ob.Save(ctx, tx, events...) }), why)
}

// unrelated are events that have nothing to do with anything, some of them keyed.
func unrelated(name string) []bus.Event {
	var events []bus.Event
	for i := range 20 {
		e := orderPaid{OrderID: fmt.Sprint(name, i)}
		events = append(events, e, keyedPaid{e})
	}
	return events
}

// saveUnrelated saves such events and waits until they are delivered.
func (f *fixture) saveUnrelated(name, why string) {
	f.t.Helper()
	for _, e := range unrelated(name) {
		f.saveSoon(why, e)
	}
	f.eventually(func() bool { return f.count("SELECT COUNT(*) FROM effect WHERE aggregate LIKE '"+name+"%'") == 40 }, why)
}

// A producer's open transaction that has repeated a keyed event holds up neither the publisher nor another producer:
// not if the event has just been handed over together with others, and not if its own snapshot is too old to show it.
func TestRepeatedKeyedSaveHoldsUpNobody(t *testing.T) {
	t.Parallel()
	for _, iso := range []sql.IsolationLevel{sql.LevelRepeatableRead, sql.LevelReadCommitted} {
		t.Run(iso.String(), func(t *testing.T) {
			t.Parallel()
			testdb.EachServer(t, func(t *testing.T, db *bun.DB) {
				f := newFixture(t, db)
				f.registered("A")
				f.run(outbox.PublisherConfig{})
				known, fresh := keyedPaid{orderPaid{OrderID: "known"}}, keyedPaid{orderPaid{OrderID: "fresh"}}
				f.save(known)
				f.eventually(func() bool { return f.count("SELECT COUNT(*) FROM effect") == 1 }, "it is delivered")

				again := f.open(iso)
				require.NoError(t, f.ob.Save(t.Context(), again, known))
				f.saveUnrelated("again", "beside a transaction that has repeated an old event")

				if iso == sql.LevelReadCommitted || f.db.Dialect().Name().String() == "mysql" { // PostgreSQL refuses what the snapshot does not show
					twin := f.open(iso)
					require.Equal(t, 1, f.countIn(twin, "SELECT COUNT(*) FROM bc_outbox_event WHERE event_id = ?", known.id()), "the snapshot is taken")
					first := f.open(iso)
					require.NoError(t, f.ob.Save(t.Context(), first, append(unrelated("first"), fresh)...))
					saved := make(chan error, 1)
					go func() { saved <- f.ob.Save(context.Background(), twin, fresh) }()
					// what MySQL says is up to 0.1 s old, counted from the last question
					require.Eventually(t, func() bool {
						return f.isWaiting() || len(saved) > 0
					}, time.Minute, 300*time.Millisecond, "the twin waits for the first")
					require.Empty(t, saved, "it cannot know what becomes of the first")
					require.NoError(t, first.Commit())
					require.NoError(t, <-saved)
					f.eventually(func() bool {
						return f.count("SELECT COUNT(*) FROM effect WHERE aggregate LIKE 'first%'") == 40
					}, "what was committed with it is delivered")
					f.saveUnrelated("beside", "beside the twin")
				}
				f.eventually(func() bool {
					return f.statuses()[outbox.StatusSent] == f.count("SELECT COUNT(*) FROM bc_outbox_event")
				}, "all is delivered")
			})
		})
	}
}

func (e keyedPaid) id() string { return outbox.EventID(0, e.EventType(), e.IdempotencyKey()) }

func (f *fixture) countIn(tx bun.Tx, query string, args ...any) int {
	f.t.Helper()
	var n int
	require.NoError(f.t, tx.QueryRowContext(f.t.Context(), query, args...).Scan(&n), query)
	return n
}

// isWaiting reports whether a statement waits for the lock of another transaction.
func (f *fixture) isWaiting() bool {
	return f.count(map[string]string{
		"mysql": "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'",
		"pg":    "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
	}[f.db.Dialect().Name().String()]) > 0
}

// Neither does one that has gone back to a savepoint, before what it saved or repeated, while publishers claimed.
func TestSavepointHoldsUpNobody(t *testing.T) {
	t.Parallel()
	for _, name := range testdb.Servers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := testdb.DSN(t, name)
			f := newFixture(t, migrated(t, dsn))
			publisher := f.another(dsn) // it finds the events by claims: nobody hands them over
			publisher.registered("A")
			var claims claimCounter
			publisher.db.AddQueryHook(&claims) //nolint:staticcheck // the engine's own pool is the point
			publisher.run(outbox.PublisherConfig{Poll: 10 * time.Millisecond})
			known := keyedPaid{orderPaid{OrderID: "known"}}
			f.save(known)
			for i, saved := range [][]bus.Event{
				{known},
				{orderPaid{OrderID: "lost"}},
				{keyedPaid{orderPaid{OrderID: "lost"}}},
				{known, orderPaid{OrderID: "lost"}, keyedPaid{orderPaid{OrderID: "lost too"}}},
			} {
				tx := f.open(sql.LevelDefault)
				require.NoError(t, err(tx.ExecContext(t.Context(), "SAVEPOINT s")))
				require.NoError(t, f.ob.Save(t.Context(), tx, saved...))
				n := claims.n.Load()
				f.eventually(func() bool { publisher.ob.Wake(); return claims.n.Load() >= n+2 }, "publishers claim")
				require.NoError(t, err(tx.ExecContext(t.Context(), "ROLLBACK TO SAVEPOINT s")))
				f.saveUnrelated(fmt.Sprintf("after %d,", i), "beside one that has gone back to a savepoint")
				require.NoError(t, tx.Commit())
				require.Zero(t, f.count("SELECT COUNT(*) FROM bc_outbox_event WHERE aggregate_id LIKE 'lost%'"))
			}
			f.save(orderPaid{OrderID: "lost"}, keyedPaid{orderPaid{OrderID: "lost"}}, keyedPaid{orderPaid{OrderID: "lost too"}})
			f.eventually(func() bool {
				return f.count("SELECT COUNT(*) FROM effect WHERE aggregate LIKE 'lost%'") == 3
			}, "they can be saved after all")
		})
	}
}

// claimCounter counts the claims of new events.
type claimCounter struct{ n atomic.Int64 }

func (c *claimCounter) BeforeQuery(ctx context.Context, _ *bun.QueryEvent) context.Context {
	return ctx
}

func (c *claimCounter) AfterQuery(_ context.Context, ev *bun.QueryEvent) {
	if strings.Contains(ev.Query, "SKIP LOCKED") && strings.Contains(ev.Query, "'NEW'") {
		c.n.Add(1)
	}
}

func err[T any](_ T, err error) error { return err }

// A repeated keyed event does not wait for the engine, whatever that writes about the event.
func TestKeyedSaveNeverWaitsForTheEngine(t *testing.T) {
	t.Parallel()
	testdb.EachServer(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.registered("A")
		paid := keyedPaid{orderPaid{OrderID: "7"}}
		f.save(paid)
		engine := f.open(sql.LevelReadCommitted) // a publisher that is frozen in the middle of claiming or settling
		require.NoError(t, err(engine.ExecContext(t.Context(), "UPDATE bc_outbox_event SET lock_version = lock_version + 1, updated_at = "+
			"updated_at WHERE event_id = ?", paid.id())))
		f.saveSoon("the engine has the event", paid, keyedPaid{orderPaid{OrderID: "8"}})
		require.NoError(t, engine.Rollback())
		require.Equal(t, 2, f.count("SELECT COUNT(*) FROM bc_outbox_event"))
	})
}

// Transactions that save several keyed events at once, in any order and repeatedly, do not deadlock.
func TestKeyedSavesDoNotDeadlock(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.registered("A")
		f.run(outbox.PublisherConfig{})
		const writers, keys = 8, 12
		each := 250
		if f.db.Dialect().Name().String() == "sqlite" {
			each = 25 // it has one writer, and knows no deadlock
		}
		var g errgroup.Group
		var deadlocks atomic.Int64
		for w := range writers {
			g.Go(func() error {
				rnd := rand.New(rand.NewPCG(1, uint64(w)))
				for i := range each {
					events := []bus.Event{orderPaid{OrderID: fmt.Sprint("plain", w)}}
					for _, k := range rnd.Perm(keys)[:5] { // a fresh dozen for every few transactions of each writer
						events = append(events, keyedPaid{orderPaid{OrderID: fmt.Sprint(i/4, "-", k)}})
					}
					err := f.trySave(append(events, events[len(events)-1])...)
					if dialect.Classify(err) == dialect.TxRetry {
						deadlocks.Add(1)
						err = nil
					}
					if err != nil {
						return err
					}
				}
				return nil
			})
		}
		require.NoError(t, g.Wait())
		t.Logf("%d deadlocks in %d transactions of %d writers, five keys each", deadlocks.Load(), writers*each, writers)
		require.Zero(t, deadlocks.Load(), "of %d transactions", writers*each)
		distinct := f.count("SELECT COUNT(DISTINCT event_id) FROM bc_outbox_event")
		require.Equal(t, distinct, f.count("SELECT COUNT(*) FROM bc_outbox_event"))
		f.eventually(func() bool { return f.count("SELECT COUNT(*) FROM effect") == distinct }, "each is delivered once")
	})
}

// neighbours are three keyed events whose ids lie next to one another, in the order of their ids.
func neighbours() (below, middle, above keyedPaid) {
	all := make([]keyedPaid, 1000)
	for i := range all {
		all[i] = keyedPaid{orderPaid{OrderID: fmt.Sprint("neighbour-", i)}}
	}
	slices.SortFunc(all, func(a, b keyedPaid) int { return strings.Compare(a.id(), b.id()) })
	return all[499], all[500], all[501]
}

// A transaction that has waited for another one that was saving the same keyed event holds up no other key while it stays
// open: not those whose ids are next to its own either. On MariaDB and MySQL that is not so if the other one was rolled
// back: whoever waits for a row that goes inherits a lock on the gap in which it was (decision 28).
func TestKeyedSaveThatCameSecondHoldsUpNoOtherKey(t *testing.T) {
	t.Parallel()
	for _, iso := range []sql.IsolationLevel{sql.LevelDefault, sql.LevelReadCommitted} {
		for name, end := range map[string]func(bun.Tx) error{"committed": bun.Tx.Commit, "rolled back": bun.Tx.Rollback} {
			t.Run(iso.String()+", "+name, func(t *testing.T) {
				t.Parallel()
				testdb.EachServer(t, func(t *testing.T, db *bun.DB) {
					f := newFixture(t, db)
					below, middle, above := neighbours()
					second := f.open(iso)
					f.countIn(second, "SELECT COUNT(*) FROM bc_event_key") // its snapshot is taken
					first := f.open(iso)
					require.NoError(t, f.ob.Save(t.Context(), first, middle))
					saved := make(chan error, 1)
					go func() { saved <- f.ob.Save(context.Background(), second, middle) }()
					require.Eventually(t, func() bool {
						return f.isWaiting() || len(saved) > 0
					}, time.Minute, 300*time.Millisecond, "the second waits for the first")
					require.Empty(t, saved, "it cannot know what becomes of the first")
					require.NoError(t, end(first))
					require.NoError(t, <-saved)
					if name == "rolled back" && f.db.Dialect().Name().String() == "mysql" {
						require.NoError(t, second.Commit()) // the neighbours wait for that
					}
					f.saveSoon("below", below)
					f.saveSoon("above", above)
					if err := second.Commit(); !errors.Is(err, sql.ErrTxDone) {
						require.NoError(t, err)
					}
					require.Equal(t, 3, f.count("SELECT COUNT(*) FROM bc_outbox_event"))
				})
			})
		}
	}
}
