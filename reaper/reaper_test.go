package reaper_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
	"github.com/bluecone-go/bluecone/reaper"
	"github.com/bluecone-go/bluecone/schedule"
)

// locks is a table of business locks: seats that are held for a while.
type locks struct {
	t  *testing.T
	db *bun.DB
}

func newLocks(t *testing.T, db *bun.DB) *locks {
	t.Helper()
	l := &locks{t, db}
	l.exec("CREATE TABLE seat (id VARCHAR(32) PRIMARY KEY, order_id VARCHAR(32) NOT NULL, status VARCHAR(16) NOT NULL, age INT NOT NULL)")
	return l
}

func (l *locks) exec(query string, args ...any) {
	l.t.Helper()
	_, err := l.db.ExecContext(context.Background(), query, args...)
	require.NoError(l.t, err)
}

// hold adds a seat that has been held for so many minutes.
func (l *locks) hold(id, order string, minutes int) {
	l.t.Helper()
	l.exec("INSERT INTO seat (id, order_id, status, age) VALUES (?, ?, 'FROZEN', ?)", id, order, minutes)
}

func (l *locks) status(id string) (s string) {
	l.t.Helper()
	require.NoError(l.t, l.db.QueryRowContext(context.Background(), "SELECT status FROM seat WHERE id = ?", id).Scan(&s))
	return s
}

// owner lets the locks of all orders go but those whose names say that they are paid.
func (l *locks) owner() *reaper.Owner {
	return &reaper.Owner{Guard: func(_ context.Context, _ bun.Tx, a reaper.Aggregate) (bool, error) {
		return !strings.HasPrefix(a.ID, "paid"), nil
	}}
}

func (l *locks) task() reaper.Task {
	return reaper.Task{
		Name: "seat.hold", Owner: l.owner(), Consumer: "Seats",
		Find: func(ctx context.Context, db bun.IDB, q reaper.Query) ([]reaper.Lock, error) {
			rows, err := db.QueryContext(ctx, "SELECT id, order_id, age FROM seat WHERE status = 'FROZEN' AND age >= ? AND id > ? ORDER BY id "+
				"LIMIT ?", int(q.OlderThan.Minutes()), q.After, q.Limit)
			if err != nil {
				return nil, err
			}
			defer rows.Close()
			var found []reaper.Lock
			for rows.Next() {
				k, minutes := reaper.Lock{AggregateType: "ORDER"}, 0
				if err := rows.Scan(&k.ID, &k.AggregateID, &minutes); err != nil {
					return nil, err
				}
				k.Age = time.Duration(minutes) * time.Minute
				found = append(found, k)
			}
			return found, rows.Err()
		},
		Release: func(ctx context.Context, tx bun.Tx, k reaper.Lock) (bool, error) {
			if k.ID == "stuck" {
				return false, errors.New("this one does not move")
			}
			res, err := tx.ExecContext(ctx, "UPDATE seat SET status = 'RELEASED' WHERE id = ? AND status = 'FROZEN'", k.ID)
			if err != nil {
				return false, err
			}
			n, err := res.RowsAffected()
			return n == 1, err
		},
	}
}

// events answers for aggregates by name: "waits" has an event in backoff, "dead" a DEAD one.
type events struct{}

func (events) OpenEvents(_ context.Context, _ bun.IDB, _ int64, kind, id, _ string) (waiting, dead int, err error) {
	if kind != "ORDER" {
		return 0, 0, fmt.Errorf("unexpected aggregate type %s", kind)
	}
	switch {
	case strings.HasPrefix(id, "waits"):
		return 1, 1, nil
	case strings.HasPrefix(id, "dead"):
		return 0, 1, nil
	}
	return 0, 0, nil
}

func newReaper(t *testing.T, db *bun.DB, cfg reaper.Config, tasks ...reaper.Task) *reaper.Reaper {
	t.Helper()
	cfg.Logger = slog.New(slog.DiscardHandler)
	r, err := reaper.New(db, events{}, cfg, tasks...)
	require.NoError(t, err)
	return r
}

func TestReleasesExpiredLocksAndNoOthers(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		l := newLocks(t, db)
		l.hold("expired", "1", 31)
		l.hold("young", "2", 29)
		l.hold("in-backoff", "waits-3", 600)
		l.hold("behind-dead", "dead-4", 60)
		l.hold("paid-for", "paid-5", 60)
		report, err := newReaper(t, db, reaper.Config{}, l.task()).RunOnce(t.Context())
		require.NoError(t, err)
		require.Equal(t, reaper.Report{Expired: 4, Released: 1, Held: 1, Dead: 1, Kept: 1}, report)
		require.Equal(t, "RELEASED", l.status("expired"))
		for _, id := range []string{"young", "in-backoff", "behind-dead", "paid-for"} {
			require.Equal(t, "FROZEN", l.status(id))
		}
		var said []string
		require.NoError(t, db.NewRaw("SELECT CONCAT(actor, ' ', action, ' ', target, ' ', details) FROM bc_audit_log").Scan(t.Context(), &said))
		require.Equal(t, []string{"reaper release ORDER/1 seat.hold expired"}, said, "a release can be found later")
	})
}

// A DEAD event does not hold a lock for ever, if the task says so.
func TestDeadEventHoldsALockOnlySoLong(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		l := newLocks(t, db)
		l.hold("a-day", "dead-1", 24*60+1)
		l.hold("an-hour", "dead-2", 60)
		l.hold("waiting-for-ever", "waits-3", 48*60)
		report, err := newReaper(t, db, reaper.Config{}, l.task()).RunOnce(t.Context())
		require.NoError(t, err)
		require.Equal(t, reaper.Report{Expired: 3, Held: 1, Dead: 2}, report, "reported only")
		task := l.task()
		task.ReleaseDead = true
		report, err = newReaper(t, db, reaper.Config{}, task).RunOnce(t.Context())
		require.NoError(t, err)
		require.Equal(t, reaper.Report{Expired: 3, Released: 1, Held: 1, Dead: 1}, report)
		require.Equal(t, "RELEASED", l.status("a-day"))
	})
}

// One lock that cannot be released, and one whole task that fails, keep no other from its turn, and
// neither is swallowed.
func TestOneBadLockStopsNobody(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		l := newLocks(t, db)
		for i := range 5 {
			l.hold(fmt.Sprintf("seat-%d", i), "1", 60)
		}
		l.hold("stuck", "1", 60)
		l.hold("z-last", "1", 60)
		broken := l.task()
		broken.Name = "broken.task"
		broken.Find = func(context.Context, bun.IDB, reaper.Query) ([]reaper.Lock, error) {
			return nil, errors.New("no such table")
		}
		report, err := newReaper(t, db, reaper.Config{Batch: 2}, broken, l.task()).RunOnce(t.Context())
		require.ErrorContains(t, err, "broken.task: find: no such table")
		require.ErrorContains(t, err, "lock stuck of ORDER 1: this one does not move")
		require.Equal(t, reaper.Report{Expired: 7, Released: 6, Failed: 1}, report)
		require.Equal(t, "RELEASED", l.status("z-last"), "pages go on behind it")
	})
}

// The guarded update decides a race: whoever is second changes nothing and counts nothing.
func TestALockIsReleasedOnceInARace(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		l := newLocks(t, db)
		l.hold("seat", "1", 60)
		task := l.task()
		find := task.Find
		task.Find = func(ctx context.Context, db bun.IDB, q reaper.Query) ([]reaper.Lock, error) {
			found, err := find(ctx, db, q)
			l.exec("UPDATE seat SET status = 'COMMITTED'") // the payment was faster
			return found, err
		}
		report, err := newReaper(t, db, reaper.Config{}, task).RunOnce(t.Context())
		require.NoError(t, err)
		require.Equal(t, reaper.Report{Expired: 1, Gone: 1}, report)
		require.Equal(t, "COMMITTED", l.status("seat"))
	})
}

// Two instances at once: the job's lease lets one of them run.
func TestOneRunInTheWholeDeployment(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		l := newLocks(t, db)
		for i := range 20 {
			l.hold(fmt.Sprintf("seat-%02d", i), "1", 60)
		}
		released, refused := make(chan int64, 4), make(chan error, 4)
		var wg sync.WaitGroup
		for i := range 4 {
			r := newReaper(t, db, reaper.Config{Instance: fmt.Sprint(i)}, l.task())
			wg.Go(func() {
				if report, err := r.RunOnce(context.Background()); err != nil {
					refused <- err
				} else {
					released <- report.Released
				}
			})
		}
		wg.Wait()
		close(released)
		close(refused)
		var total int64
		for n := range released {
			total += n
		}
		for err := range refused {
			require.ErrorIs(t, err, schedule.ErrBusy)
		}
		require.Equal(t, int64(20), total, "each once")
	})
}

func TestMistakesAreReportedAtOnceByName(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t, "sqlite")
	task := newLocks(t, db).task()
	_, err := reaper.New(db, events{}, reaper.Config{Cron: "TZ=0", Batch: -1, LockTimeout: -time.Second},
		reaper.Task{Name: "Bad Name", TTL: -1}, task, task)
	for _, says := range []string{
		"Bad Name: Consumer is empty", "Bad Name: Owner.Guard is missing", "seat.hold: Of is nil: a task that shares its Owner",
		"Config.Cron", "Config.Batch is -1", "Config.LockTimeout is -1s", `Task.Name "Bad Name"`, "TTL is -1ns",
		"Find and Release must not be nil",
		`two tasks have the name "seat.hold"`,
	} {
		require.ErrorContains(t, err, says)
	}
	for _, none := range []reaper.Events{nil, (*outbox.Outbox)(nil)} {
		_, err = reaper.New(nil, none, reaper.Config{Batch: -1}, reaper.Task{Name: "Bad Name"})
		for _, says := range []string{"db is nil", "events is nil: give it the outbox", "Config.Batch is -1", `Task.Name "Bad Name"`} {
			require.ErrorContains(t, err, says)
		}
		_, err = reaper.New(db, none, reaper.Config{}, task)
		require.EqualError(t, err, "reaper.New: events is nil: give it the outbox, of outbox.New(db, outbox.Config{})")
	}
}

// The longest name of an instance runs the job on every database; a longer one would fail each run.
func TestTheNameOfAnInstanceIsLimited(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		name := strings.Repeat("x", 65)
		_, err := reaper.New(db, events{}, reaper.Config{Instance: name})
		require.EqualError(t, err, `reaper.Config.Instance "`+name+`" has 65 bytes: the limit is 64`)
		_, err = newReaper(t, db, reaper.Config{Instance: name[:64]}).RunOnce(t.Context())
		require.NoError(t, err)
	})
}

// A task whose pages do not move on is an error, not an endless loop.
func TestAPageThatDoesNotMoveOnIsAnError(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t, "sqlite")
	l := newLocks(t, db)
	task := l.task()
	task.Find = func(context.Context, bun.IDB, reaper.Query) ([]reaper.Lock, error) {
		return []reaper.Lock{{ID: "b", AggregateType: "ORDER", AggregateID: "1"}, {ID: "a", AggregateType: "ORDER", AggregateID: "1"}}, nil
	}
	_, err := newReaper(t, db, reaper.Config{Batch: 2}, task).RunOnce(t.Context())
	require.ErrorContains(t, err, "in the order of keys")
}

// Locks whose keys are integers are found page by page in the database's order, and their ages are those of its clock.
func TestLocksWithIntegerKeys(t *testing.T) {
	t.Parallel()
	locksWithKeysFrom(t, -1200)
}

// The same beyond 2^53, where a floating-point number is many integers at once.
func TestLocksWithSnowflakes(t *testing.T) {
	t.Parallel()
	locksWithKeysFrom(t, 1<<60)
}

func locksWithKeysFrom(t *testing.T, first int64) {
	t.Helper()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		l := &locks{t, db}
		d := db.Dialect().Name().String()
		l.exec("CREATE TABLE hold (id BIGINT PRIMARY KEY, status VARCHAR(16) NOT NULL, held_at " + map[string]string{
			"mysql": "DATETIME(6)", "pg": "TIMESTAMPTZ", "sqlite": "TEXT",
		}[d] + " NOT NULL)")
		past := map[string]string{
			"mysql": "UTC_TIMESTAMP(6) - INTERVAL 1 HOUR", "pg": "now() - interval '1 hour'",
			"sqlite": "strftime('%Y-%m-%d %H:%M:%f', 'now', '-1 hours') || '000'",
		}[d]
		const n = 2500
		young := first + 1207
		values := make([]string, n)
		for i := range values {
			values[i] = fmt.Sprintf("(%d, 'HELD', %s)", first+int64(i), past)
		}
		l.exec("INSERT INTO hold (id, status, held_at) VALUES " + strings.Join(values, ", "))
		l.exec("UPDATE hold SET held_at = "+map[string]string{
			"mysql": "UTC_TIMESTAMP(6)", "pg": "now()", "sqlite": "strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'",
		}[d]+" WHERE id = ?", young)
		seen := make(map[string]bool)
		task := reaper.Task{
			Name: "hold", Consumer: "Seats",
			Owner: &reaper.Owner{Guard: func(context.Context, bun.Tx, reaper.Aggregate) (bool, error) { return false, nil }},
			Find: func(ctx context.Context, db bun.IDB, q reaper.Query) ([]reaper.Lock, error) {
				rows, err := db.QueryContext(ctx, "SELECT id, ? FROM hold WHERE status = 'HELD' AND ?", reaper.Age("held_at"),
					q.Page("held_at", "hold.id"))
				if err != nil {
					return nil, err
				}
				defer rows.Close()
				var found []reaper.Lock
				for rows.Next() {
					k, micros := reaper.Lock{AggregateType: "ORDER"}, int64(0)
					if err := rows.Scan(&k.ID, &micros); err != nil {
						return nil, err
					}
					k.AggregateID, k.Age = k.ID, time.Duration(micros)*time.Microsecond
					require.InDelta(t, time.Hour, k.Age, float64(10*time.Minute))
					seen[k.ID] = true
					found = append(found, k)
				}
				return found, rows.Err()
			},
			Release: func(context.Context, bun.Tx, reaper.Lock) (bool, error) { return true, nil },
		}
		report, err := newReaper(t, db, reaper.Config{Batch: 500}, task).RunOnce(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, n-1, report.Expired)
		require.Len(t, seen, n-1)
		require.NotContains(t, seen, fmt.Sprint(young))
	})
}
