package bus_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// numbered is an event of which there are several.
type numbered struct {
	Name string
	N    int
}

func (numbered) EventType() string              { return "thing.numbered" }
func (e numbered) Aggregate() (kind, id string) { return "THING", fmt.Sprint(e.Name, e.N) }

// world is a bus with its outbox.
type world struct {
	t   *testing.T
	db  *bun.DB
	ob  *outbox.Outbox
	bus *bus.Bus

	mu   sync.Mutex
	said []string
}

func newWorld(t *testing.T, db *bun.DB) *world {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	ob, err := outbox.New(db, outbox.Config{Logger: quiet})
	require.NoError(t, err)
	return &world{t: t, db: db, ob: ob, bus: bus.New(db, bus.Config{Logger: quiet})}
}

func (w *world) say(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.said = append(w.said, fmt.Sprintf(format, args...))
}

// deliver saves events and runs what is due.
func (w *world) deliver(events ...bus.Event) {
	w.t.Helper()
	require.NoError(w.t, w.db.RunInTx(w.t.Context(), nil, func(ctx context.Context, tx bun.Tx) error {
		return w.ob.Save(ctx, tx, events...)
	}))
	pub, err := outbox.NewPublisher(w.ob, w.bus, outbox.PublisherConfig{})
	require.NoError(w.t, err)
	_, err = pub.RunOnce(w.t.Context())
	require.NoError(w.t, err)
}

func (w *world) deliveries() map[consumelog.Status]int {
	w.t.Helper()
	counts, err := w.ob.Log().Counts(w.t.Context())
	require.NoError(w.t, err)
	out := make(map[consumelog.Status]int)
	for s, n := range counts {
		if n > 0 {
			out[s] = int(n)
		}
	}
	return out
}

func (w *world) text(query string) (text string) {
	w.t.Helper()
	require.NoError(w.t, w.db.NewRaw(query).Scan(w.t.Context(), &text))
	return text
}

// kinds registers one handler of every kind, each of a consumer of its own that is named like its kind.
func (w *world) kinds(fn func(ctx context.Context, kind string, n int) error) {
	bus.On(w.bus.Consumer("On", bus.ConsumerConfig{}), func(ctx context.Context, _ bun.Tx, _ bus.Message[numbered]) error {
		return fn(ctx, "On", 1)
	})
	bus.OnBatch(w.bus.Consumer("OnBatch", bus.ConsumerConfig{}), func(ctx context.Context, _ bun.Tx, ms []bus.Message[numbered]) error {
		return fn(ctx, "OnBatch", len(ms))
	})
	bus.OnSQL(w.bus.Consumer("OnSQL", bus.ConsumerConfig{}), func(ctx context.Context, _ bus.Tx, _ bus.Message[numbered]) error {
		return fn(ctx, "OnSQL", 1)
	})
	bus.OnSQLBatch(w.bus.Consumer("OnSQLBatch", bus.ConsumerConfig{}), func(ctx context.Context, _ bus.Tx, ms []bus.Message[numbered]) error {
		return fn(ctx, "OnSQLBatch", len(ms))
	})
	bus.OnExternal(w.bus.Consumer("OnExternal", bus.ConsumerConfig{}), func(ctx context.Context, _ bus.Message[numbered]) error {
		return fn(ctx, "OnExternal", 1)
	})
}

type whoKey struct{}

// Middleware is around every kind of handler, the first one used outermost, whenever the handler was registered. It sees what the
// handler gets, and the handler gets its context.
func TestMiddlewareIsAroundEveryKindOfHandler(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		w := newWorld(t, db)
		made := 0
		around := func(name string) func(bus.HandlerFunc) bus.HandlerFunc {
			return func(next bus.HandlerFunc) bus.HandlerFunc {
				made++
				return func(ctx context.Context, ms []bus.Message[bus.Event]) error {
					first := ms[0]
					payload, ok := first.Payload.(numbered)
					if !ok || first.Type != "thing.numbered" || first.AggregateType != "THING" || first.Attempt != 1 || first.ID == "" {
						return fmt.Errorf("the middleware is told %+v", first)
					}
					who, _ := ctx.Value(whoKey{}).(string)
					w.say("%s %s begins with %d of %s", first.Consumer, name, len(ms), payload.Name)
					err := next(context.WithValue(ctx, whoKey{}, who+name), ms)
					w.say("%s %s ends", first.Consumer, name)
					return err
				}
			}
		}
		w.bus.Use(around("outer"))
		w.kinds(func(ctx context.Context, kind string, n int) error {
			w.say("%s handles %d within %v", kind, n, ctx.Value(whoKey{}))
			return nil
		})
		w.bus.Use(around("inner"))
		w.deliver(numbered{"a", 1}, numbered{"a", 1}) // of one aggregate: the calls for them come one after the other
		require.Equal(t, map[consumelog.Status]int{consumelog.Success: 10}, w.deliveries(),
			w.text("SELECT MAX(error_message) FROM bc_event_consume_log"))
		require.Equal(t, 2, made, "each is made once")
		for _, kind := range []string{"OnBatch", "OnSQLBatch"} {
			requireOrder(t, w.said, kind+" outer begins with 2 of a", kind+" inner begins with 2 of a", kind+" handles 2 within outerinner",
				kind+" inner ends", kind+" outer ends")
		}
		for _, kind := range []string{"On", "OnSQL", "OnExternal"} {
			requireOrder(t, w.said, kind+" outer begins with 1 of a", kind+" inner begins with 1 of a", kind+" handles 1 within outerinner",
				kind+" inner ends", kind+" outer ends", kind+" outer begins with 1 of a")
		}
	})
}

// requireOrder looks for texts among others, in this order.
func requireOrder(t *testing.T, said []string, want ...string) {
	t.Helper()
	found := 0
	for _, s := range said {
		if found < len(want) && s == want[found] {
			found++
		}
	}
	require.Equal(t, len(want), found, "%q is missing after those before it: %q", want[min(found, len(want)-1)], said)
}

// answer is middleware that answers without calling its handler.
func answer(err error) func(context.Context, func(context.Context) error) error {
	return func(context.Context, func(context.Context) error) error { return err }
}

// What middleware answers counts as the handler's answer.
func TestMiddlewareAnswersLikeAHandler(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer func(ctx context.Context, next func(context.Context) error) error
		want   consumelog.Status
		says   string
	}{
		"Error":     {answer(errors.New("too early")), consumelog.Failed, "too early"},
		"Permanent": {answer(bus.Permanent(errors.New("never"))), consumelog.Dead, "never"},
		"Skip":      {answer(bus.Skip("a test order")), consumelog.Skipped, "a test order"},
		"Panic":     {func(context.Context, func(context.Context) error) error { panic("oh") }, consumelog.Failed, "handler panicked: oh"},
		"Goexit":    {func(context.Context, func(context.Context) error) error { runtime.Goexit(); return nil }, consumelog.Failed, "Goexit"},
		"Nothing":   {answer(nil), consumelog.Success, ""},
		"AfterwardsFails": {func(ctx context.Context, next func(context.Context) error) error {
			return errors.Join(next(ctx), errors.New("after it"))
		}, consumelog.Failed, "after it"},
		"ForeignContext": {func(_ context.Context, next func(context.Context) error) error {
			return next(context.Background()) //nolint:contextcheck // that is the mistake
		}, consumelog.Failed, "a context that was not made from the one it was handed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, testdb.Open(t, "sqlite"))
			w.bus.Use(func(next bus.HandlerFunc) bus.HandlerFunc {
				return func(ctx context.Context, ms []bus.Message[bus.Event]) error {
					return c.answer(ctx, func(ctx context.Context) error { return next(ctx, ms) })
				}
			})
			bus.OnSQL(w.bus.Consumer("A", bus.ConsumerConfig{}), func(ctx context.Context, tx bus.Tx, _ bus.Message[numbered]) error {
				_, err := tx.ExecContext(ctx, "INSERT INTO effect VALUES (1)")
				return err
			})
			_, err := w.db.ExecContext(t.Context(), "CREATE TABLE effect (n INT)")
			require.NoError(t, err)
			w.deliver(numbered{"a", 1})
			require.Equal(t, map[consumelog.Status]int{c.want: 1}, w.deliveries())
			require.Contains(t, w.text("SELECT COALESCE(error_message, '') FROM bc_event_consume_log"), c.says)
			require.Equal(t, "0", w.text("SELECT COUNT(*) FROM effect"), "nothing that failed, or was not called, has an effect")
		})
	}
}

// Middleware that makes no handler fails every call, and says which one it is.
func TestMiddlewareThatMakesNoHandlerIsNamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testdb.Open(t, "sqlite"))
	w.bus.Use(func(next bus.HandlerFunc) bus.HandlerFunc { return next })
	w.bus.Use(func(bus.HandlerFunc) bus.HandlerFunc { return nil })
	bus.On(w.bus.Consumer("A", bus.ConsumerConfig{}), handle[numbered])
	w.deliver(numbered{"a", 1})
	require.Contains(t, w.text("SELECT error_message FROM bc_event_consume_log"), "middleware number 2 returned nil")
}

// Middleware may ask its bus while it is made.
func TestMiddlewareAsksItsBus(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testdb.Open(t, "sqlite"))
	w.bus.Use(func(next bus.HandlerFunc) bus.HandlerFunc {
		w.say("%d %v", len(w.bus.Consumers()), w.bus.Err())
		return next
	})
	bus.On(w.bus.Consumer("A", bus.ConsumerConfig{Timeout: time.Second}), handle[numbered])
	w.deliver(numbered{"a", 1})
	require.Equal(t, []string{"1 <nil>"}, w.said)
	require.Equal(t, map[consumelog.Status]int{consumelog.Success: 1}, w.deliveries())
}

// A consumer's own Backoff says when the next attempt is due; one that spoils it later is replaced by the default.
func TestBackoffOfAConsumer(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		backoff     func(n int, spoilt bool) time.Duration
		least, most time.Duration
	}{
		"Hours":    {func(n int, _ bool) time.Duration { return time.Duration(n) * time.Hour }, 59 * time.Minute, time.Hour},
		"AtOnce":   {func(int, bool) time.Duration { return 0 }, -time.Minute, 0},
		"Default":  {nil, 0, 2 * time.Second},
		"Negative": {func(_ int, spoilt bool) time.Duration { return map[bool]time.Duration{true: -time.Hour}[spoilt] }, 0, 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, testdb.Open(t, "sqlite"))
			var spoilt atomic.Bool
			cfg := bus.ConsumerConfig{MaxAttempts: 30}
			if c.backoff != nil {
				cfg.Backoff = func(n int) time.Duration { return c.backoff(n, spoilt.Load()) }
			}
			bus.On(w.bus.Consumer("A", cfg), func(context.Context, bun.Tx, bus.Message[numbered]) error {
				spoilt.Store(true)
				return errors.New("no")
			})
			w.deliver(numbered{"a", 1})
			require.Equal(t, map[consumelog.Status]int{consumelog.Failed: 1}, w.deliveries())
			var seconds float64
			require.NoError(t, w.db.NewRaw("SELECT (julianday(next_retry_at) - julianday('now')) * 86400 FROM bc_event_consume_log").
				Scan(t.Context(), &seconds))
			due := time.Duration(seconds * float64(time.Second))
			require.LessOrEqual(t, due, c.most+time.Second)
			if c.least > 2*time.Second { // a machine that is slow has no part in it
				require.Greater(t, due, c.least-10*time.Minute)
			}
		})
	}
}
