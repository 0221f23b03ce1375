package simulation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	"CREATE TABLE effect (id INTEGER PRIMARY KEY AUTOINCREMENT, consumer TEXT NOT NULL, event_id TEXT NOT NULL, aggregate TEXT NOT NULL, seq INTEGER NOT NULL)",
	"CREATE TABLE seat (id TEXT PRIMARY KEY, aggregate TEXT NOT NULL, status TEXT NOT NULL DEFAULT 'FROZEN', held_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')))",
	"CREATE VIEW kept_effect AS SELECT * FROM effect x WHERE EXISTS (SELECT 1 FROM bc_outbox_event e WHERE e.event_id = x.event_id) OR EXISTS (SELECT 1 FROM bc_event_consume_log l WHERE l.event_id = x.event_id)",
}

// happened is the event of the lives.
type happened struct {
	N    int    `json:"n"`   // number in the plan
	Seq  int    `json:"seq"` // within the aggregate, in the order of the commits
	Of   string `json:"of"`
	Seat string `json:"seat"`
}

func (happened) EventType() string              { return "it.happened" }
func (h happened) Aggregate() (kind, id string) { return "THING", h.Of }

// keyed is one that may be saved again.
type keyed struct {
	happened
	Key int `json:"key"`
}

func (k keyed) IdempotencyKey() string { return fmt.Sprint("key-", k.Key) }

// more is an event of a type that only the newer release takes.
type more struct{ happened }

func (more) EventType() string { return "it.more" }

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
}

// instance is a process of the deployment.
type instance struct {
	line *line
	db   *bun.DB
	ob   *outbox.Outbox
	stop context.CancelFunc
	done chan struct{}
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
	ln := &line{name: name, patience: patience, store: l.store, writer: l.writer, note: l.note, rates: l.plan.rates, calm: calm, rand: rand.New(rand.NewPCG(l.plan.seed, uint64(len(l.lines)+1)))}
	l.lines = append(l.lines, ln)
	return ln
}

// start starts an instance in a place.
func (l *life) start(place int, name string) {
	ctx, stop := context.WithCancel(l.ctx)
	in := &instance{line: l.connect(name, false), stop: stop, done: make(chan struct{})}
	in.db = in.line.open()
	var err error
	in.ob, err = outbox.New(in.db, outbox.Config{Instance: name, Logger: l.logger, DeleteSent: l.plan.deletes})
	l.must(err)
	b := bus.New(in.db, bus.Config{Logger: l.logger})
	l.register(b, place > 0)
	pub, err := outbox.NewPublisher(in.ob, b, outbox.PublisherConfig{Lease: l.plan.lease, DrainTimeout: 5 * time.Second, Poll: 2 * time.Second})
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

// register registers the consumers: every effect goes through the transaction. In a life with two
// releases the newer one has another name for the first consumer, and all take another type.
func (l *life) register(b *bus.Bus, isNewer bool) {
	takesMore := l.plan.releases && isNewer
	first := "Ordered"
	if takesMore {
		first = renamed
	}
	for _, c := range []*bus.Consumer{b.Consumer(first, bus.ConsumerConfig{Key: "Ordered"}), b.Consumer("Unordered", bus.ConsumerConfig{Unordered: true, Concurrency: 2})} {
		bus.On(c, l.handle)
		if takesMore {
			bus.On(c, func(ctx context.Context, tx bun.Tx, m bus.Message[more]) error { return l.handle(ctx, tx, plain(m)) })
		}
	}
	passing := b.Consumer("Passing", bus.ConsumerConfig{OnDead: bus.Continue, Batch: 2, Queue: 3})
	bus.OnBatch(passing, l.handleAll)
	outside := b.Consumer("Outside", bus.ConsumerConfig{})
	bus.OnExternal(outside, l.tellOutside)
	if takesMore {
		bus.OnBatch(passing, func(ctx context.Context, tx bun.Tx, ms []bus.Message[more]) error {
			same := make([]bus.Message[happened], len(ms))
			for i, m := range ms {
				same[i] = plain(m)
			}
			return l.handleAll(ctx, tx, same)
		})
		bus.OnExternal(outside, func(ctx context.Context, m bus.Message[more]) error { return l.tellOutside(ctx, plain(m)) })
	}
}

// renamed is what the newer release calls the consumer whose key is Ordered.
const renamed = "Sorted"

// plain is the same message, of the type that both releases take.
func plain(m bus.Message[more]) bus.Message[happened] {
	return bus.Message[happened]{Envelope: m.Envelope, Payload: m.Payload.happened, Consumer: m.Consumer, Attempt: m.Attempt}
}

// handleAll is the handler of the consumer that takes several events at once.
func (l *life) handleAll(ctx context.Context, tx bun.Tx, ms []bus.Message[happened]) error {
	for _, m := range ms {
		if err := l.handle(ctx, tx, m); err != nil {
			return err
		}
	}
	return nil
}

// tellOutside is the handler of the consumer without a transaction.
func (l *life) tellOutside(ctx context.Context, m bus.Message[happened]) error {
	fails := l.fails(m.Consumer, m.Payload.N)
	switch fails {
	case "", "swallow":
	case "slow":
		wait(ctx, 2*l.plan.lease)
	case "permanent":
		return bus.Permanent(errors.New("planned"))
	default:
		return errors.New("planned")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.outside[m.ID]++; l.outside[m.ID] == 1 {
		l.sent = append(l.sent, m)
	}
	return ctx.Err()
}

// fails takes the next failure of a delivery from the plan.
func (l *life) fails(consumer string, n int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := fmt.Sprintf("%s/%d", consumer, n)
	f := l.failures[key]
	if f.times == 0 {
		return ""
	}
	f.times--
	l.failures[key] = f
	return f.kind
}

// handle is the handler of all consumers.
func (l *life) handle(ctx context.Context, tx bun.Tx, m bus.Message[happened]) error {
	if m.Consumer == renamed {
		m.Consumer = "Ordered"
	}
	fails := l.fails(m.Consumer, m.Payload.N)
	if fails != "" {
		l.note("%s fails at event %d (%s): %s", m.Consumer, m.Payload.N, m.ID, fails)
	}
	switch fails {
	case "error":
		return errors.New("planned")
	case "panic":
		panic("planned")
	case "permanent":
		return bus.Permanent(errors.New("planned"))
	case "later":
		return bus.RetryAfter(errors.New("planned"), 2*time.Second)
	case "slow":
		wait(ctx, busyTimeout-time.Second) // with the write lock of the database
	}
	_, err := tx.ExecContext(ctx, "INSERT INTO effect (consumer, event_id, aggregate, seq) VALUES (?, ?, ?, ?)", m.Consumer, m.ID, m.AggregateID, m.Payload.Seq)
	if err == nil && m.Consumer == "Ordered" {
		err = l.settle(ctx, tx, m)
	}
	if fails == "swallow" {
		return nil
	}
	return err
}

// settle settles the event's seat, which the reaper must have left alone.
func (l *life) settle(ctx context.Context, tx bun.Tx, m bus.Message[happened]) error {
	res, err := tx.ExecContext(ctx, "UPDATE seat SET status = 'TAKEN' WHERE id = ? AND status = 'FROZEN'", m.Payload.Seat)
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err == nil && n != 1 {
		l.t.Errorf("seed %d: the reaper released the seat of event %d before its event was through", l.plan.seed, m.Payload.N)
	}
	return nil
}

// seats are the locks of the reaper: short lived ones, so that only their events protect them.
func (l *life) seats() reaper.Task {
	return reaper.Task{
		Name: "seat", TTL: time.Second, Consumer: "Ordered",
		Owner: &reaper.Owner{Guard: func(context.Context, bun.Tx, reaper.Aggregate) (bool, error) { return true, nil }}, // SQLite has one writer
		Find: func(ctx context.Context, db bun.IDB, q reaper.Query) (found []reaper.Lock, err error) {
			rows, err := db.QueryContext(ctx, "SELECT id, aggregate FROM seat WHERE status = 'FROZEN' AND held_at < strftime('%Y-%m-%d %H:%M:%f', 'now', '-1 seconds') AND id > ? ORDER BY id LIMIT ?", q.After, q.Limit)
			if err != nil {
				return nil, err
			}
			defer rows.Close()
			for rows.Next() {
				k := reaper.Lock{AggregateType: "THING", Age: q.OlderThan}
				if err := rows.Scan(&k.ID, &k.AggregateID); err != nil {
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
