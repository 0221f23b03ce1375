package txtest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/outbox"
)

// A handler writes and reads by every way of the library, and sees what it wrote.
func handles[T any](w *World, d Door[T]) {
	d.On(w.Bus.Consumer("A", bus.ConsumerConfig{}), func(ctx context.Context, tx T, m bus.Message[Paid]) error {
		if err := d.write(ctx, tx, m, m.Payload.Seq); err != nil {
			return err
		}
		for name, way := range d.Ways {
			if err := way(ctx, tx, "SELECT seq FROM effect WHERE event_id = ?", m.ID); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		n, err := d.Number(ctx, tx, "SELECT COUNT(*) FROM effect WHERE event_id = ? AND consumer = ?", m.ID, m.Consumer)
		if err == nil && n != 1 {
			err = fmt.Errorf("the handler sees %d of its own effects", n)
		}
		return err
	})
	for i := range 3 {
		w.save(Paid{Order: fmt.Sprint(i), Seq: 1}, Paid{Order: fmt.Sprint(i), Seq: 2})
		w.once()
	}
	require.Equal(w.T, 3, w.effects(1), w.errors())
	require.Equal(w.T, 3, w.effects(2))
	require.Zero(w.T, w.count("SELECT COUNT(*) FROM bc_delivery_attempt"), w.errors())
	w.requireSent(6)
}

func handlesBatches[T any](w *World, d Door[T]) {
	var calls atomic.Int64
	d.OnBatch(w.Bus.Consumer("A", bus.ConsumerConfig{}), func(ctx context.Context, tx T, ms []bus.Message[Paid]) error {
		calls.Add(1)
		for _, m := range ms {
			if err := d.write(ctx, tx, m, m.Payload.Seq); err != nil {
				return err
			}
			if m.Payload.Seq == 9 {
				return bus.Permanent(errors.New("this one cannot be done"))
			}
		}
		return nil
	})
	w.save(Paid{Order: "1"}, Paid{Order: "2"}, Paid{Order: "3"})
	w.once()
	require.EqualValues(w.T, 1, calls.Load(), "all in one call")
	w.save(Paid{Order: "4"}, Paid{Order: "5", Seq: 9}, Paid{Order: "6"})
	w.once()
	require.Equal(w.T, 5, w.effects(0))
	require.Zero(w.T, w.effects(9))
	require.Equal(w.T, map[consumelog.Status]int{consumelog.Success: 5, consumelog.Dead: 1}, w.deliveries())
}

// What a handler saves belongs to its event's tenant, and exists only if the handler succeeded.
func savesFollowUps[T any](w *World, d Door[T]) {
	d.On(w.Bus.Consumer("A", bus.ConsumerConfig{MaxAttempts: 1}), func(ctx context.Context, tx T, m bus.Message[Paid]) error {
		if err := d.Save(ctx, w.Outbox, tx, Followed(m.Payload)); err != nil {
			return err
		}
		if m.Payload.Seq == 1 {
			return errors.New("and fails after it")
		}
		return nil
	})
	bus.On(w.Bus.Consumer("B", bus.ConsumerConfig{}), func(ctx context.Context, tx bun.Tx, m bus.Message[Followed]) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO effect (consumer, event_id, seq) VALUES ('B', ?, ?)", m.ID, m.TenantID)
		return err
	})
	w.save(outbox.With(Paid{Order: "1"}, outbox.Tenant(12, 0)), Paid{Order: "2", Seq: 1})
	w.once()
	w.once()
	require.Equal(w.T, 1, w.count("SELECT COUNT(*) FROM bc_outbox_event WHERE event_type = 'order.followed'"), w.errors())
	require.Equal(w.T, 1, w.effects(12))
	require.Equal(w.T, map[consumelog.Status]int{consumelog.Success: 2, consumelog.Dead: 1}, w.deliveries())
}

// A handler goes back to a savepoint of its own; what it wrote before and after that stays.
func allowsSavepoints[T any](w *World, d Door[T]) {
	d.On(w.Bus.Consumer("A", bus.ConsumerConfig{}), func(ctx context.Context, tx T, m bus.Message[Paid]) error {
		if err := d.write(ctx, tx, m, 1); err != nil {
			return err
		}
		err := d.nested(ctx, tx, func(tx T) error { // an error that going back undoes
			if err := d.write(ctx, tx, m, 2); err != nil {
				return nil //nolint:nilerr // then the test fails
			}
			return d.Ways["Exec"](ctx, tx, "INSERT INTO nowhere VALUES (1)")
		})
		if err == nil {
			return errors.New("there is such a table")
		}
		return d.nested(ctx, tx, func(tx T) error { return d.write(ctx, tx, m, 3) })
	})
	w.save(Paid{Order: "1"})
	w.once()
	require.Equal(w.T, []int{1, 0, 1}, []int{w.effects(1), w.effects(2), w.effects(3)}, w.errors())
	w.requireSent(1)
}

// Whoever keeps a handler's transaction can do nothing with it.
func endsWithTheHandler[T any](w *World, d Door[T]) {
	var kept T
	d.On(w.Bus.Consumer("A", bus.ConsumerConfig{}), func(ctx context.Context, tx T, m bus.Message[Paid]) error {
		kept = tx
		return d.write(ctx, tx, m, 1)
	})
	w.save(Paid{Order: "1"})
	w.once()
	w.requireSent(1)
	ctx := w.T.Context()
	for name, way := range d.Ways {
		require.ErrorIs(w.T, way(ctx, kept, "SELECT seq FROM effect"), sql.ErrTxDone, name)
	}
	require.ErrorIs(w.T, d.Ways["Exec"](ctx, kept, "UPDATE effect SET seq = ?", 2), sql.ErrTxDone)
	require.ErrorIs(w.T, d.Commit(ctx, kept), sql.ErrTxDone)
	require.ErrorContains(w.T, d.Save(ctx, w.Outbox, kept, Paid{Order: "2"}), "the transaction has ended")
	require.Equal(w.T, 1, w.effects(1))
	require.Equal(w.T, 1, w.events())
}

// The adapter's handlers are those of the bus: one event type has one handler in a consumer, of whatever kind.
func refusesTwoHandlers[T any](w *World, d Door[T]) {
	noop := func(context.Context, T, bus.Message[Paid]) error { return nil }
	for name, other := range map[string]func(c *bus.Consumer){
		"On": func(c *bus.Consumer) {
			bus.On(c, func(context.Context, bun.Tx, bus.Message[Paid]) error { return nil })
		},
		"OnSQL": func(c *bus.Consumer) {
			bus.OnSQL(c, func(context.Context, bus.Tx, bus.Message[Paid]) error { return nil })
		},
		"OnExternal": func(c *bus.Consumer) {
			bus.OnExternal(c, func(context.Context, bus.Message[Paid]) error { return nil })
		},
		"the adapter's On": func(c *bus.Consumer) { d.On(c, noop) },
		"the adapter's OnBatch": func(c *bus.Consumer) {
			d.OnBatch(c, func(context.Context, T, []bus.Message[Paid]) error { return nil })
		},
	} {
		for _, isFirst := range []bool{true, false} {
			w.restart()
			c := w.Bus.Consumer("A", bus.ConsumerConfig{})
			if isFirst {
				d.On(c, noop)
			}
			other(c)
			if !isFirst {
				d.On(c, noop)
			}
			_, err := w.publisher()
			require.ErrorContains(w.T, err, `of consumer "A": the consumer has two handlers for order.paid`, name)
		}
	}
}

func refusesNilHandlers[T any](w *World, d Door[T]) {
	for name, register := range map[string]func(c *bus.Consumer){
		"On": func(c *bus.Consumer) { d.On(c, nil) }, "OnBatch": func(c *bus.Consumer) { d.OnBatch(c, nil) },
	} {
		w.restart()
		register(w.Bus.Consumer("A", bus.ConsumerConfig{}))
		_, err := w.publisher()
		require.ErrorContains(w.T, err, `of consumer "A": the handler is nil`, name)
		require.Panics(w.T, func() { register(nil) }, name)
		require.Panics(w.T, func() { register(&bus.Consumer{}) }, name)
	}
}
