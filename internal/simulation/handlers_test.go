package simulation

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/handler"
)

// worker is what the handlers of an instance do.
type worker struct {
	*life
	in *instance
}

// renamed is what the newer release calls the consumer whose key is Ordered.
const renamed = "Sorted"

// team are the consumers of an instance, by the kind of their handlers.
type team struct {
	inTx             []*bus.Consumer
	passing, outside *bus.Consumer
}

// register registers the consumers: every effect goes through the transaction. In a life with two
// releases the newer one has another name for the first consumer, and all take another type.
func (l *life) register(b *bus.Bus, in *instance, isNewer bool) {
	w, takesMore := &worker{l, in}, l.plan.releases && isNewer
	first, most := "Ordered", l.plan.attempts()
	if takesMore {
		first = renamed
	}
	all := team{
		[]*bus.Consumer{
			b.Consumer(first, bus.ConsumerConfig{Key: "Ordered", MaxAttempts: most}),
			b.Consumer("Unordered", bus.ConsumerConfig{Unordered: true, Concurrency: 2, Replayable: true, MaxAttempts: most}),
		},
		b.Consumer("Passing", bus.ConsumerConfig{DeadPolicy: bus.Continue, Batch: 2, Queue: 3, MaxAttempts: most}),
		b.Consumer("Outside", bus.ConsumerConfig{MaxAttempts: most}),
	}
	if l.plan.hasNewcomer(in.place) {
		all.inTx = append(all.inTx, l.newcomer(b))
	}
	if l.plan.versions && isNewer {
		take[reshaped](w, all)
		b.Upcast(reshaped{}.EventType(), 1, reshape)
	} else {
		take[happened](w, all)
	}
	if takesMore {
		take[more](w, all)
	}
}

// take gives all consumers a handler of a type.
func take[E event](w *worker, all team) {
	var e E
	known := handler.VersionOf(e)
	same := func(m bus.Message[E]) bus.Message[happened] {
		if m.SchemaVersion > known {
			w.t.Errorf("seed %d: an instance that knows version %d was given event %s in version %d", w.plan.seed, known, m.ID, m.SchemaVersion)
		}
		return plain(m)
	}
	for _, c := range all.inTx {
		bus.On(c, func(ctx context.Context, tx bun.Tx, m bus.Message[E]) error { return w.handle(ctx, tx, same(m)) })
	}
	bus.OnBatch(all.passing, func(ctx context.Context, tx bun.Tx, ms []bus.Message[E]) error {
		for _, m := range ms {
			if err := w.handle(ctx, tx, same(m)); err != nil {
				return err
			}
		}
		return nil
	})
	bus.OnExternal(all.outside, func(ctx context.Context, m bus.Message[E]) error { return w.tellOutside(ctx, same(m)) })
}

// tellOutside is the handler of the consumer without a transaction.
func (w *worker) tellOutside(ctx context.Context, m bus.Message[happened]) error {
	defer w.alone(ctx, m)()
	if w.kills(m) {
		return errKilled
	}
	fails := w.fails(m.Consumer, m.Payload.N)
	switch fails {
	case "", "swallow":
	case "slow":
		wait(ctx, 2*w.plan.lease)
	case "permanent":
		return bus.Permanent(errors.New("planned"))
	default:
		return errors.New("planned")
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.outside[m.ID]++; w.outside[m.ID] == 1 {
		w.sent = append(w.sent, m)
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

// handle is the handler of all consumers with a transaction.
func (w *worker) handle(ctx context.Context, tx bun.Tx, m bus.Message[happened]) error {
	switch {
	case m.Consumer == renamed:
		m.Consumer = "Ordered"
	case m.Replay:
		m.Consumer += replayed
	}
	w.inTime(m)
	if w.kills(m) {
		return errKilled
	}
	fails := w.fails(m.Consumer, m.Payload.N)
	if fails != "" {
		w.note("%s fails at event %d (%s): %s", m.Consumer, m.Payload.N, m.ID, fails)
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
	_, err := tx.ExecContext(ctx, "INSERT INTO effect (consumer, event_id, aggregate, seq) VALUES (?, ?, ?, ?)", m.Consumer, m.ID,
		w.lineOf(m), m.Payload.Seq)
	if err == nil && m.Consumer == "Ordered" {
		err = w.settle(ctx, tx, m)
	}
	if fails == "swallow" {
		return nil
	}
	return err
}

// settle settles the event's seat, which the reaper must have left alone.
func (w *worker) settle(ctx context.Context, tx bun.Tx, m bus.Message[happened]) error {
	res, err := tx.ExecContext(ctx, "UPDATE seat SET status = 'TAKEN' WHERE id = ? AND status = 'FROZEN'", m.Payload.Seat)
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err == nil && n != 1 {
		w.t.Errorf("seed %d: the reaper released the seat of event %d before its event was through", w.plan.seed, m.Payload.N)
	}
	return nil
}
