package outbox_test

import (
	"context"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/chaos"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// throughProxy opens the database of dsn by way of a proxy.
func throughProxy(t *testing.T, dialect, dsn string) (*bun.DB, *chaos.Proxy) {
	t.Helper()
	u, err := url.Parse(dsn)
	require.NoError(t, err)
	way, err := chaos.Listen(testdb.Dialect(dialect), u.Host)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, way.Close()) })
	u.Host = way.Addr()
	return testdb.OpenDSN(t, u.String()), way
}

// lines is a log that a test reads.
type lines struct {
	mu  sync.Mutex
	all strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(p)
}

func (l *lines) count(s string) int { return strings.Count(l.text(), s) }

func (l *lines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}

// unconnected is a fixture whose database may not answer, and its whole log.
func unconnected(t *testing.T, db *bun.DB) (*fixture, *lines) {
	t.Helper()
	log := &lines{}
	logger := slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	ob, err := outbox.New(db, outbox.Config{Logger: logger})
	require.NoError(t, err)
	return &fixture{t: t, db: db, ob: ob, bus: bus.New(db, bus.Config{Logger: logger}), log: ob.Log()}, log
}

// While the database is away Save returns the error to its caller, and Run says so once and keeps trying.
func TestUnreachableDatabase(t *testing.T) {
	t.Parallel()
	for _, dialect := range testdb.Servers() {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			dsn := testdb.DSN(t, dialect)
			direct := newFixture(t, migrated(t, dsn))
			direct.effects()
			db, way := throughProxy(t, dialect, dsn)
			way.Break(chaos.Fault{Kind: chaos.Reset}) // away from the beginning
			f, log := unconnected(t, db)
			f.counting("Counter", bus.ConsumerConfig{})
			f.run(outbox.PublisherConfig{Poll: 10 * time.Millisecond})
			away, back := "the database does not answer as it should", "the database answers again"
			f.eventually(func() bool { return log.count(away) == 1 }, "it says so")
			require.Error(t, f.trySave(orderPaid{OrderID: "lost"}), "the producer is told")

			way.Repair()
			f.eventually(func() bool { return log.count(back) == 1 }, "and that it is back")
			direct.save(orderPaid{OrderID: "1"})
			f.eventually(func() bool { return direct.statuses()[outbox.StatusSent] == 1 }, "it goes on")
			for range 3 { // cut under way
				way.Break(chaos.Fault{Kind: chaos.Reset})
				way.Repair()
				direct.save(orderPaid{OrderID: "2"})
			}
			f.eventually(func() bool { return direct.statuses()[outbox.StatusSent] == 4 }, "it goes on again")
			require.Equal(t, 4, direct.count("SELECT COUNT(*) FROM effect"))
			require.Zero(t, direct.count("SELECT COUNT(*) FROM bc_outbox_event WHERE aggregate_id = 'lost'"))
		})
	}
}

// breaking breaks the way to the database before or after the first statement that says so.
type breaking struct {
	before, after string
	late          atomic.Bool // it is not yet time
	fault         chaos.Fault
	once          sync.Once
	way           *chaos.Proxy
}

// BeforeQuery breaks it before a statement.
func (h *breaking) BeforeQuery(ctx context.Context, ev *bun.QueryEvent) context.Context {
	h.at(h.before, ev)
	return ctx
}

// AfterQuery breaks it after a statement.
func (h *breaking) AfterQuery(_ context.Context, ev *bun.QueryEvent) { h.at(h.after, ev) }

func (h *breaking) at(part string, ev *bun.QueryEvent) {
	if part != "" && !h.late.Load() && strings.Contains(ev.Query, part) {
		h.once.Do(func() { h.way.Break(h.fault) })
	}
}

// A database that falls silent while a publisher starts, after it has announced its consumers, does
// not hold it for ever.
func TestSilentDatabaseAtTheStart(t *testing.T) {
	t.Parallel()
	hook := &breaking{after: "INSERT INTO bc_consumer_type", fault: chaos.Fault{Kind: chaos.BlackHole}}
	direct, f, log := broken(t, "postgres", hook) // whose driver has no limit of its own
	f.counting("Counter", bus.ConsumerConfig{})
	f.run(outbox.PublisherConfig{Poll: 10 * time.Millisecond, Lease: time.Second})
	f.eventually(func() bool { return log.count("the database does not answer as it should") == 1 }, "it says so")
	hook.way.Repair()
	direct.save(orderPaid{OrderID: "1"})
	f.eventually(func() bool { return direct.statuses()[outbox.StatusSent] == 1 }, "it goes on")
}

// Shutdown: what runs may finish, the rest is given back and is due at once for others.
func TestDrainFinishesWhatRunsAndGivesBackTheRest(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		const events = 300 // far more than run before the end is noticed
		gate, entered := make(chan struct{}), make(chan struct{}, 2*events)
		bus.On(f.bus.Consumer("Slow", bus.ConsumerConfig{Concurrency: 1, Batch: 1}),
			func(ctx context.Context, tx bun.Tx, m bus.Message[orderPaid]) error {
				entered <- struct{}{}
				<-gate
				return effect(ctx, tx, m, m.Payload.Seq)
			})
		all := make([]bus.Event, events)
		for i, id := range ids(events) {
			all[i] = orderPaid{OrderID: id}
		}
		f.save(all...)
		stop, done := f.begin(outbox.PublisherConfig{})
		<-entered
		stop()
		close(gate)
		require.NoError(t, <-done)
		finished := f.count("SELECT COUNT(*) FROM effect")
		require.GreaterOrEqual(t, finished, 1, "the one that ran was allowed to finish")
		require.Less(t, finished, events, "the others were not begun")
		require.Zero(t, f.statuses()[outbox.StatusDispatching], "nothing waits for a lease to expire")
		require.Zero(t, f.deliveries()[consumelog.Processing])
		f.once()
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: events}, f.statuses())
		require.Equal(t, events, f.count("SELECT COUNT(*) FROM effect"))
	})
}

// A handler that does not end within the drain time is reported, and its event is delivered by somebody else.
func TestDrainDoesNotWaitForEver(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testdb.Open(t, "mysql"))
	entered, gate := make(chan struct{}), make(chan struct{})
	bus.OnExternal(f.bus.Consumer("Stuck", bus.ConsumerConfig{}), func(context.Context, bus.Message[orderPaid]) error {
		close(entered)
		<-gate // ignores its context
		return nil
	})
	f.save(orderPaid{OrderID: "1"})
	stop, done := f.begin(outbox.PublisherConfig{DrainTimeout: 50 * time.Millisecond})
	<-entered
	stop()
	require.ErrorContains(t, <-done, "handlers were still running 50ms after the end")
	close(gate)
}

// One failing runner stops the others.
func TestRunStopsEverybodyWhenOneFails(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testdb.Open(t, "sqlite"))
	f.counting("Counter", bus.ConsumerConfig{})
	err := bus.Run(t.Context(), f.publisher(outbox.PublisherConfig{}), runnerFunc(func(context.Context) error { return errHandler }))
	require.ErrorIs(t, err, errHandler)
}

type runnerFunc func(ctx context.Context) error

func (r runnerFunc) Run(ctx context.Context) error { return r(ctx) }
