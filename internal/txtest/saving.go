package txtest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/outbox"
)

// begin begins a transaction and writes a row of the application's.
func (d Door[T]) begin(w *World) T {
	w.T.Helper()
	tx, err := d.Begin(w.T.Context())
	require.NoError(w.T, err)
	require.NoError(w.T, d.Ways["Exec"](w.T.Context(), tx, "UPDATE hot SET n = n + 1 WHERE id = ?", 1))
	return tx
}

func savesWithItsTransaction[T any](w *World, d Door[T]) {
	ctx := w.T.Context()
	d.counting(w.Bus, "A", bus.ConsumerConfig{})
	text := `it's a \ "test" ? $1 ? ` + "\u2713"
	for i := range 3 { // statements are prepared once they have been seen
		events := []bus.Event{
			Paid{Order: text, Seq: 1},
			outbox.With(Paid{Order: fmt.Sprint(i), Seq: 2}, outbox.Tenant(7, 3), outbox.Meta("note", text)),
			outbox.With(Paid{Order: "later"}, outbox.DeliverAt(time.Now().Add(time.Hour))),
		}
		tx := d.begin(w)
		require.NoError(w.T, d.Save(ctx, w.Outbox, tx, events...))
		require.NoError(w.T, d.Rollback(ctx, tx))
		require.Equal(w.T, 3*i, w.events(), "rolled back")
		require.Equal(w.T, i, w.count("SELECT n FROM hot WHERE id = 1"), "with what it belongs to")

		tx = d.begin(w)
		require.NoError(w.T, d.Save(ctx, w.Outbox, tx))
		require.NoError(w.T, d.Save(ctx, w.Outbox, tx, events...))
		require.NoError(w.T, d.Commit(ctx, tx))
		require.Equal(w.T, 3*i+3, w.events(), "committed")
		require.Equal(w.T, i+1, w.count("SELECT n FROM hot WHERE id = 1"), "with what it belongs to")
	}
	w.once()
	require.Equal(w.T, 3, w.effects(1))
	require.Equal(w.T, 3, w.effects(2))
	require.Equal(w.T, 3, w.count("SELECT COUNT(*) FROM bc_outbox_event WHERE aggregate_id = ?", text))
}

func savesInPart[T any](w *World, d Door[T]) {
	ctx := w.T.Context()
	tx := d.begin(w)
	require.NoError(w.T, d.Save(ctx, w.Outbox, tx, Paid{Order: "before"}))
	undo := errors.New("undo it")
	require.ErrorIs(w.T, d.nested(ctx, tx, func(tx T) error {
		require.NoError(w.T, d.Save(ctx, w.Outbox, tx, Paid{Order: "undone"}))
		return undo
	}), undo)
	require.NoError(w.T, d.nested(ctx, tx, func(tx T) error { return d.Save(ctx, w.Outbox, tx, Paid{Order: "inside"}) }))
	require.NoError(w.T, d.Save(ctx, w.Outbox, tx, Paid{Order: "after"}))
	require.NoError(w.T, d.Commit(ctx, tx))
	require.Equal(w.T, 3, w.events())
	require.Zero(w.T, w.count("SELECT COUNT(*) FROM bc_outbox_event WHERE aggregate_id = 'undone'"))
}

// nested is a part of a transaction that can be undone, by the library's own way if it has one.
func (d Door[T]) nested(ctx context.Context, tx T, fn func(tx T) error) error {
	if d.Nested != nil {
		return d.Nested(ctx, tx, fn)
	}
	exec := d.Ways["Exec"]
	if err := exec(ctx, tx, "SAVEPOINT here"); err != nil {
		return err
	}
	if err := fn(tx); err != nil {
		return errors.Join(err, exec(ctx, tx, "ROLLBACK TO SAVEPOINT here"))
	}
	return exec(ctx, tx, "RELEASE SAVEPOINT here")
}

func savesKeyedOnce[T any](w *World, d Door[T]) {
	ctx := w.T.Context()
	for range 3 {
		tx := d.begin(w)
		require.NoError(w.T, d.Save(ctx, w.Outbox, tx, Paid{Order: "1", Key: "one"}, Paid{Order: "2", Key: "two"}))
		require.NoError(w.T, d.Save(ctx, w.Outbox, tx, Paid{Order: "2", Key: "two"}))
		require.NoError(w.T, d.Commit(ctx, tx))
		require.Equal(w.T, 2, w.events())
	}
	require.Equal(w.T, 3, w.count("SELECT n FROM hot WHERE id = 1"), "a repetition is no error")
}

func refusesWhatIsNotOpen[T any](w *World, d Door[T]) {
	ctx := w.T.Context()
	require.NotEmpty(w.T, d.NotOpen)
	for name, tx := range d.NotOpen {
		require.ErrorContains(w.T, d.Save(ctx, w.Outbox, tx, Paid{Order: "1"}), "open transaction", name)
		require.NoError(w.T, d.Save(ctx, w.Outbox, tx), "%s: no event, nothing to do", name)
	}
	for name, end := range map[string]func(context.Context, T) error{"Commit": d.Commit, "Rollback": d.Rollback} {
		for _, key := range []string{"", "one"} {
			tx := d.begin(w)
			require.NoError(w.T, end(ctx, tx))
			require.ErrorContains(w.T, d.Save(ctx, w.Outbox, tx, Paid{Order: "1", Key: key}), "the transaction has ended", name)
		}
	}
	require.Zero(w.T, w.events())
}

func refusesInvalidEvents[T any](w *World, d Door[T]) {
	ctx := w.T.Context()
	tx := d.begin(w)
	var none *Paid
	for _, bad := range []bus.Event{nil, none, outbox.With(nil), Paid{}} {
		require.ErrorIs(w.T, d.Save(ctx, w.Outbox, tx, Paid{Order: "1"}, bad), outbox.ErrInvalidEvent)
	}
	require.ErrorContains(w.T, d.Save(ctx, w.Outbox, tx, Paid{Order: "1"}, nil), "event 2 of 2 (nil): the event is nil")
	require.NoError(w.T, d.Save(ctx, w.Outbox, tx, Paid{Order: "1"}), "nothing was sent: the transaction is still usable")
	require.NoError(w.T, d.Commit(ctx, tx))
	require.Equal(w.T, 1, w.events())
}
