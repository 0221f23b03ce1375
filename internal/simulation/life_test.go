package simulation

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/outbox"
	"github.com/bluecone-go/bluecone/reaper"
)

// ownTables are the tables of the lives: what producers did, what handlers did, and a lock that
// every event settles. The view leaves out what retention has removed.
var ownTables = []string{
	"CREATE TABLE business (event_id TEXT NOT NULL, aggregate TEXT NOT NULL)",
	"CREATE INDEX business_aggregate ON business (aggregate)",
	"CREATE TABLE effect (id INTEGER PRIMARY KEY AUTOINCREMENT, consumer TEXT NOT NULL, event_id TEXT NOT NULL, aggregate TEXT NOT NULL, " +
		"seq INTEGER NOT NULL)",
	"CREATE TABLE seat (id TEXT PRIMARY KEY, tenant INTEGER NOT NULL, aggregate TEXT NOT NULL, status TEXT NOT NULL DEFAULT 'FROZEN', " +
		"held_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')))",
	"CREATE VIEW kept_effect AS SELECT * FROM effect x WHERE EXISTS (SELECT 1 FROM bc_outbox_event e WHERE e.event_id = x.event_id) " +
		"OR EXISTS (SELECT 1 FROM bc_event_consume_log l WHERE l.event_id = x.event_id)",
}

// life is one run of a plan.
type life struct {
	t       *testing.T
	plan    plan
	store   *store
	writer  chan struct{}
	began   time.Time
	logger  *slog.Logger
	ctx     context.Context //nolint:containedctx // it is the life
	running sync.WaitGroup

	mu        sync.Mutex
	journal   []string
	told      map[string]string       // event → the best that a producer was told of it
	skipped   map[string]bool         // consumer and event
	unordered []string                // consumers who have lost the order, by what they asked for
	outside   map[string]int          // event → how often the handler without a transaction ran
	sent      []bus.Message[happened] // for the first time, in their order
	failures  map[string]failure
	lines     []*line
	instances []*instance
	calmed    bool

	due      map[int]time.Time // of delayed events
	hands    map[string]hand   // calls without a transaction, by aggregate
	replays  map[string]bool   // events that were replayed
	isMended bool              // the delivery that kills does so no more
	killed   int
	restarts sync.WaitGroup
}

// newLife makes one that has not begun.
func newLife(s *store, p plan) *life {
	return &life{
		plan: p, store: s, failures: maps.Clone(p.failures), told: make(map[string]string), skipped: make(map[string]bool),
		outside: make(map[string]int),
		due:     make(map[int]time.Time), hands: make(map[string]hand), replays: make(map[string]bool),
	}
}

// instance is a process of the deployment.
type instance struct {
	place int
	line  *line
	db    *bun.DB
	ob    *outbox.Outbox
	stop  context.CancelFunc
	done  chan struct{}
	dies  sync.Once
}

func (l *life) note(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.journal = append(l.journal, time.Since(l.began).Round(time.Millisecond).String()+" "+fmt.Sprintf(format, args...))
}

// Write takes the engine's log into the journal.
func (l *life) Write(p []byte) (int, error) {
	l.note("%s", strings.TrimSpace(string(p)))
	return len(p), nil
}

// connect makes a line of its own.
func (l *life) connect(name string, calm bool) *line {
	l.mu.Lock()
	defer l.mu.Unlock()
	patience := busyTimeout
	if calm {
		patience = time.Hour
	}
	ln := &line{
		name: name, patience: patience, store: l.store, writer: l.writer, note: l.note, rates: l.plan.rates, calm: calm,
		rand: rand.New(rand.NewPCG(l.plan.seed, uint64(len(l.lines)+1))),
	}
	l.lines = append(l.lines, ln)
	return ln
}

// start starts an instance in a place.
func (l *life) start(place int, name string) {
	ctx, stop := context.WithCancel(l.ctx)
	in := &instance{place: place, line: l.connect(name, false), stop: stop, done: make(chan struct{})}
	in.line.set(func(ln *line) { ln.slow = l.plan.slows(place) })
	in.db = in.line.open()
	var err error
	in.ob, err = outbox.New(in.db, outbox.Config{Instance: name, Logger: l.logger, DeleteSent: l.plan.deletes})
	l.must(err)
	b := bus.New(in.db, bus.Config{Logger: l.logger})
	l.register(b, in, place > 0)
	pub, err := outbox.NewPublisher(in.ob, b, outbox.PublisherConfig{
		Lease: l.plan.lease, DrainTimeout: 5 * time.Second, Poll: 2 * time.Second,
	})
	l.must(err)
	runners := append(l.jobs(in), pub)
	l.mu.Lock()
	for len(l.instances) <= place {
		l.instances = append(l.instances, nil)
	}
	l.instances[place] = in
	l.mu.Unlock()
	go func() {
		defer close(in.done)
		if err := bus.Run(ctx, runners...); err != nil {
			l.note("%s ended: %v", name, err)
		}
		_ = in.db.Close()
	}()
}

// jobs are the reaper and the retention of an instance, if this life has them.
func (l *life) jobs(in *instance) (runners []bus.Runner) {
	if l.plan.reaper {
		rp, err := reaper.New(in.db, in.ob, reaper.Config{Cron: "0/5 * * * * ?", Instance: in.line.name, Logger: l.logger}, l.seats())
		l.must(err)
		runners = append(runners, rp)
	}
	if l.plan.retention {
		rt, err := outbox.NewRetention(in.ob, outbox.RetentionConfig{Keep: time.Minute, Cron: "0/20 * * * * ?"})
		l.must(err)
		runners = append(runners, rt)
	}
	return runners
}

func (l *life) at(place int) *instance {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.instances[place]
}

// seats are the locks of the reaper: short lived ones, so that only their events protect them.
func (l *life) seats() reaper.Task {
	return reaper.Task{
		Name: "seat", TTL: time.Second, Consumer: "Ordered",
		Owner: &reaper.Owner{Guard: func(context.Context, bun.Tx, reaper.Aggregate) (bool, error) { return true, nil }}, // SQLite has one writer
		Find: func(ctx context.Context, db bun.IDB, q reaper.Query) (found []reaper.Lock, err error) {
			rows, err := db.QueryContext(ctx, "SELECT id, tenant, aggregate FROM seat WHERE status = 'FROZEN' "+
				"AND held_at < strftime('%Y-%m-%d %H:%M:%f', 'now', '-1 seconds') AND id > ? ORDER BY id LIMIT ?", q.After, q.Limit)
			if err != nil {
				return nil, err
			}
			defer rows.Close()
			for rows.Next() {
				k := reaper.Lock{AggregateType: "THING", Age: q.OlderThan}
				if err := rows.Scan(&k.ID, &k.TenantID, &k.AggregateID); err != nil {
					return nil, err
				}
				found = append(found, k)
			}
			return found, rows.Err()
		},
		Release: func(ctx context.Context, tx bun.Tx, k reaper.Lock) (bool, error) {
			res, err := tx.ExecContext(ctx, "UPDATE seat SET status = 'RELEASED' WHERE id = ? AND status = 'FROZEN'", k.ID)
			if err != nil {
				return false, err
			}
			n, err := res.RowsAffected()
			return n == 1, err
		},
	}
}

func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
