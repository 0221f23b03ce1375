package attempts_test

import (
	"context"
	"errors"
	"strings"
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

// twice calls fn eight times at once and counts what succeeded.
func twice(fn func() error) (ok int, failed []error) {
	var all sync.WaitGroup
	var mu sync.Mutex
	for range 8 {
		all.Go(func() {
			err := fn()
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				ok++
			} else {
				failed = append(failed, err)
			}
		})
	}
	all.Wait()
	return ok, failed
}

// Promise 3: operators who click "retry" at the same time, while a publisher runs, cause one effect.
func TestRetryClickedTwiceIsOneEffect(t *testing.T) {
	t.Parallel()
	on(t, all, func(t *testing.T, db *bun.DB) {
		w := newWorld(t, db)
		var fixed atomic.Bool
		bus.On(w.bus.Consumer("A", bus.ConsumerConfig{MaxAttempts: 1}), func(ctx context.Context, tx bun.Tx, m bus.Message[paid]) error {
			if err := write(ctx, tx, m, m.Payload.Seq); err != nil {
				return err
			}
			if !fixed.Load() {
				return errors.New("not yet")
			}
			return nil
		})
		for i := range 5 {
			w.save(paid{ID: id(i), Seq: 1}, paid{ID: id(i), Seq: 2})
		}
		w.once()
		fixed.Store(true)
		w.run(outbox.PublisherConfig{})
		for i := range 5 {
			e := w.eventID(id(i))
			_, failed := twice(func() error { return w.ob.Retry(t.Context(), clerk, e) })
			for _, err := range failed {
				require.ErrorIs(t, err, outbox.ErrNotFound)
			}
		}
		w.eventually(func() bool { return w.statuses()[outbox.StatusSent] == 10 }, "all are SENT")
		require.Equal(t, 10, w.effects())
		for i := range 5 {
			require.Equal(t, []string{"1", "2"}, w.column("SELECT seq FROM effect WHERE aggregate = ? ORDER BY id", id(i)))
		}
	})
}

// Promise 2 and 3: an operator decides about a delivery whose handler runs: it either happened, or it did not.
func TestDecisionAboutADeliveryThatRunsIsOneOrTheOther(t *testing.T) {
	t.Parallel()
	decisions := map[string]func(w *world, ctx context.Context, e string) error{
		"skip":      func(w *world, ctx context.Context, e string) error { return w.ob.Skip(ctx, clerk, e, "A") },
		"mark dead": func(w *world, ctx context.Context, e string) error { return w.ob.MarkDead(ctx, clerk, e, "A") },
		"discard":   func(w *world, ctx context.Context, e string) error { return w.ob.Discard(ctx, clerk, e) },
		"retry":     func(w *world, ctx context.Context, e string) error { return w.ob.Retry(ctx, clerk, e) },
		"replay":    func(w *world, ctx context.Context, e string) error { return w.ob.Replay(ctx, clerk, e, "A") },
		"retire":    func(w *world, ctx context.Context, _ string) error { return w.ob.Retire(ctx, clerk, "A") },
		"pause":     func(w *world, ctx context.Context, _ string) error { return w.ob.Pause(ctx, clerk, "A", time.Hour) },
	}
	on(t, servers, func(t *testing.T, db *bun.DB) {
		for name, decide := range decisions {
			for _, leased := range []bool{false, true} {
				t.Run(name+map[bool]string{true: " what was retried", false: ""}[leased], func(t *testing.T) {
					decideWhileItRuns(t, db, decide, leased)
				})
			}
		}
	})
}

func decideWhileItRuns(t *testing.T, db *bun.DB, decide func(w *world, ctx context.Context, e string) error, leased bool) {
	t.Helper()
	w := newWorld(t, db)
	for _, table := range []string{"effect", "bc_event_consume_log", "bc_outbox_event", "bc_consumer", "bc_consumer_type"} {
		w.exec("DELETE FROM " + table)
	}
	inside, gate := make(chan struct{}), make(chan struct{})
	var runs atomic.Int64
	bus.On(w.bus.Consumer("A", bus.ConsumerConfig{Replayable: true, MaxAttempts: 5}),
		func(ctx context.Context, tx bun.Tx, m bus.Message[paid]) error {
			n := runs.Add(1)
			if leased && n == 1 {
				return errors.New("the first time")
			}
			if err := write(ctx, tx, m, int(n)); err != nil {
				return err
			}
			if n == map[bool]int64{true: 2, false: 1}[leased] {
				close(inside)
				<-gate
			}
			return nil
		})
	w.save(paid{ID: "1"})
	if leased {
		w.once()
		w.hurry()
	}
	stop := w.run(outbox.PublisherConfig{})
	w.wait(inside, "the handler")
	limited, cancel := context.WithTimeout(t.Context(), testdb.Patience())
	defer cancel()
	answered := make(chan error, 1)
	e := w.eventID("1")
	go func() { answered <- decide(w, limited, e) }()
	select {
	case err := <-answered:
		answered <- err
	case <-time.After(200 * time.Millisecond): // it waits for the handler
	}
	close(gate)
	err := <-answered
	if err != nil {
		require.ErrorIs(t, err, outbox.ErrNotFound)
	}
	w.eventually(func() bool {
		return w.count("SELECT COUNT(*) FROM bc_outbox_event WHERE status IN ('SENT', 'DEAD')") == 1
	}, "the event is decided")
	stop()
	switch status := w.column("SELECT status FROM bc_event_consume_log WHERE consumer_name = 'A'")[0]; status {
	case "SUCCESS":
		replays := w.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE consumer_name = 'A@replay'")
		require.Equal(t, 1+replays, w.effects())
	default:
		require.Zero(t, w.effects(), "%s, and yet it had an effect", status)
		require.NoError(t, err, "the operator was told that nothing changed")
	}
}

// Doc of Replay: "is once more exactly once": of eight clicks.
func TestReplayClickedTwiceIsOneMoreEffect(t *testing.T) {
	t.Parallel()
	on(t, all, func(t *testing.T, db *bun.DB) {
		w := newWorld(t, db)
		w.counting("A", bus.ConsumerConfig{Replayable: true})
		w.save(paid{ID: "1"}, paid{ID: "2"})
		w.once()
		e := w.eventID("1")
		ok, failed := twice(func() error { return w.ob.Replay(t.Context(), clerk, e, "A") })
		require.Positive(t, ok)
		for _, err := range failed {
			require.ErrorIs(t, err, outbox.ErrNotFound)
		}
		w.settle()
		require.Equal(t, 3, w.effects(), "%d clicks were accepted", ok)
		require.Equal(t, ok, w.count("SELECT COUNT(*) FROM bc_audit_log WHERE action = 'replay'"))
	})
}

// Doc of bus.ConsumerConfig.Key, and of Replay: a name of the greatest length has replays too.
func TestNamesOfTheGreatestLengthWorkEverywhere(t *testing.T) {
	t.Parallel()
	on(t, all, func(t *testing.T, db *bun.DB) {
		for _, n := range []int{121, 122, 128} {
			name := strings.Repeat("N", n)
			w := newWorldOf(t, db, outbox.Config{Instance: strings.Repeat("i", 64)}, bus.Config{})
			w.counting(name, bus.ConsumerConfig{Replayable: true, MaxAttempts: 1})
			if err := w.bus.Err(); err != nil {
				require.ErrorContains(t, err, "the limit is", "refused while wiring")
				continue
			}
			w.save(paid{ID: id(n)})
			w.settle()
			require.NoError(t, w.ob.Pause(t.Context(), clerk, name, time.Hour))
			require.NoError(t, w.ob.Resume(t.Context(), clerk, name))
			require.NoError(t, w.ob.Replay(t.Context(), clerk, w.eventID(id(n)), name))
			w.settle()
			require.Equal(t, 2, w.count("SELECT COUNT(*) FROM effect WHERE aggregate = ?", id(n)))
			require.NoError(t, w.ob.Retire(t.Context(), clerk, name))
			w.exec("DELETE FROM bc_event_consume_log")
		}
	})
}

// Promise 2: "A registration ends only when an operator retires it": a consumer that is retired with deliveries open, and comes
// back, gets what waited, once, and in order.
func TestRetiredConsumerThatComesBackGoesOn(t *testing.T) {
	t.Parallel()
	on(t, all, func(t *testing.T, db *bun.DB) {
		w := newWorld(t, db)
		w.counting("A", bus.ConsumerConfig{})
		w.counting("B", bus.ConsumerConfig{})
		w.once()
		require.NoError(t, w.ob.Pause(t.Context(), clerk, "A", 0))
		w.save(paid{ID: "1", Seq: 1}, paid{ID: "2", Seq: 1})
		w.once()
		other := newWorld(t, db) // an instance that does not have A
		other.counting("B", bus.ConsumerConfig{})
		require.NoError(t, w.ob.Retire(t.Context(), clerk, "A"))
		other.save(paid{ID: "1", Seq: 2})
		other.once()
		back := newWorld(t, db)
		back.counting("A", bus.ConsumerConfig{})
		back.counting("B", bus.ConsumerConfig{})
		_ = back.ob.Resume(t.Context(), clerk, "A") // whether it is paused still is not what this is about
		back.once()
		back.save(paid{ID: "1", Seq: 3})
		back.settle()
		got := w.column("SELECT seq FROM effect WHERE consumer = 'A' AND aggregate = '1' ORDER BY id")
		require.Contains(t, [][]string{{"1", "3"}, {"1", "2", "3"}}, got, "what waited, then what came")
		require.Equal(t, 1, w.count("SELECT COUNT(*) FROM effect WHERE consumer = 'A' AND aggregate = '2'"))
		require.Equal(t, 4, w.count("SELECT COUNT(*) FROM effect WHERE consumer = 'B'"))
	})
}

// Promise 5: a consumer that is paused and resumed again and again, under way, delays nobody and loses nothing.
func TestPauseAndResumeUnderWay(t *testing.T) {
	t.Parallel()
	on(t, all, func(t *testing.T, db *bun.DB) {
		w := newWorld(t, db)
		w.counting("A", bus.ConsumerConfig{})
		w.counting("B", bus.ConsumerConfig{})
		w.run(outbox.PublisherConfig{Poll: 20 * time.Millisecond})
		w.eventually(func() bool { return w.count("SELECT COUNT(*) FROM bc_consumer") == 2 }, "registered")
		for i := range 40 {
			w.save(paid{ID: id(i % 5), Seq: i})
			if i%2 == 0 {
				require.NoError(t, w.ob.Pause(t.Context(), clerk, "A", 0))
			} else {
				require.NoError(t, w.ob.Resume(t.Context(), clerk, "A"))
			}
		}
		w.eventually(func() bool { return w.statuses()[outbox.StatusSent] == 40 }, "all are SENT")
		require.Equal(t, 80, w.effects())
		for i := range 5 {
			for _, c := range []string{"A", "B"} {
				require.Equal(t, []string{id(i), id(i), id(i), id(i), id(i), id(i), id(i), id(i)},
					w.column("SELECT aggregate FROM effect WHERE consumer = ? AND aggregate = ? ORDER BY seq, id", c, id(i)))
				require.Zero(t, w.count("SELECT COUNT(*) FROM effect a JOIN effect b ON a.consumer = b.consumer AND a.aggregate = b.aggregate "+
					"AND a.id < b.id AND a.seq >= b.seq WHERE a.consumer = ?", c))
			}
		}
	})
}

// Promise 2: one instance says of a type that nobody consumes it, while another one has a consumer for it.
func TestTypeThatAnotherInstanceConsumesIsNotUnconsumed(t *testing.T) {
	t.Parallel()
	on(t, all, func(t *testing.T, db *bun.DB) {
		consuming, ignoring := newWorld(t, db), newWorld(t, db)
		consuming.counting("A", bus.ConsumerConfig{})
		consuming.once()
		ignoring.bus.Unconsumed("order.paid", "order.shipped")
		ignoring.save(paid{ID: "1", Seq: 1}, shipped{ID: "1", Seq: 2})
		ignoring.once()
		consuming.settle()
		require.Equal(t, 1, consuming.effects())
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 2}, consuming.statuses())
	})
}

// Promise 2: "unless an operator skipped it, with a reason, in the audit log": interventions without any are refused, and those
// about nothing leave no trace.
func TestInterventionAboutNothingLeavesNoTrace(t *testing.T) {
	t.Parallel()
	on(t, all, func(t *testing.T, db *bun.DB) {
		w := newWorld(t, db)
		w.counting("A", bus.ConsumerConfig{})
		w.save(paid{ID: "1"})
		w.once()
		e := w.eventID("1")
		for _, op := range []outbox.Operation{{}, {Actor: "x"}, {Reason: "x"}, {Actor: " ", Reason: "\t"}, {Actor: "\u200b", Reason: ""}} {
			require.Error(t, w.ob.Skip(t.Context(), op, e, "A"))
			require.Error(t, w.ob.Retire(t.Context(), op, "A"))
			require.Error(t, w.ob.Pause(t.Context(), op, "A", 0))
		}
		for _, consumer := range []string{"A ", "a", "B", "", "A@replay", "A'"} {
			require.Error(t, w.ob.Skip(t.Context(), clerk, e, consumer), consumer)
			require.Error(t, w.ob.MarkDead(t.Context(), clerk, e, consumer), consumer)
			require.Error(t, w.ob.Retry(t.Context(), clerk, e, consumer), consumer)
			require.Error(t, w.ob.Replay(t.Context(), clerk, e, consumer), consumer)
		}
		for _, other := range []string{e + " ", " " + e, strings.ToUpper(e), "%", ""} {
			require.ErrorIs(t, w.ob.Skip(t.Context(), clerk, other, "A"), outbox.ErrNotFound, "%q", other)
			require.ErrorIs(t, w.ob.Discard(t.Context(), clerk, other), outbox.ErrNotFound, "%q", other)
		}
		require.ErrorIs(t, w.ob.Skip(t.Context(), clerk, e, "A"), outbox.ErrNotFound, "it has succeeded")
		require.ErrorIs(t, w.ob.MarkDead(t.Context(), clerk, e, "A"), outbox.ErrNotFound)
		require.ErrorIs(t, w.ob.Discard(t.Context(), clerk, e), outbox.ErrNotFound)
		require.Zero(t, w.count("SELECT COUNT(*) FROM bc_audit_log"))
		require.Equal(t, map[consumelog.Status]int{consumelog.Success: 1}, w.deliveries())
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 1}, w.statuses())
	})
}
