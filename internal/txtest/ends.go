package txtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

// The end of a handler's transaction, by the library's own methods and by statements, fails the delivery, whatever the handler
// answers, and nothing takes effect.
func cannotEnd[T any](w *World, d Door[T]) {
	ends := map[string]func(ctx context.Context, tx T) error{"Commit": d.Commit, "Rollback": d.Rollback}
	for _, query := range []string{"COMMIT", " /* now */ commit", "ROLLBACK", "END", "rollback work", "COMMIT AND CHAIN", "BEGIN"} {
		for name, way := range d.Ways {
			ends[name+" "+query] = func(ctx context.Context, tx T) error { return way(ctx, tx, query) }
		}
	}
	for name, end := range ends {
		d.On(w.Bus.Consumer(consumerName(name), bus.ConsumerConfig{MaxAttempts: 1}),
			func(ctx context.Context, tx T, m bus.Message[Paid]) error {
				if err := d.write(ctx, tx, m, 1); err != nil {
					return err
				}
				if err := end(ctx, tx); err == nil {
					return bus.RetryAfter(errors.New("it was allowed"), 0)
				}
				_ = d.write(ctx, tx, m, 2)
				return nil // swallowed
			})
	}
	w.save(Paid{Order: "1"})
	w.once()
	require.Zero(w.T, w.count("SELECT COUNT(*) FROM effect"))
	require.Equal(w.T, map[consumelog.Status]int{consumelog.Dead: len(ends)}, w.deliveries(), w.errors())
	require.Equal(w.T, len(ends), strings.Count(w.errors(), "ended its transaction"), w.errors())
}

// consumerName makes a name of a text.
func consumerName(text string) string {
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune(" /*.()", r) {
			return '_'
		}
		return r
	}, text)
}

// A COMMIT that no first word tells of is found out after it was sent. What was committed is one effect; what the handler writes
// after it is refused; and no other event is lost, because no other one is in the transaction.
func findsOutHiddenCommits[T any](w *World, d Door[T]) {
	query := "DELETE FROM effect WHERE seq = 77; COMMIT"
	switch w.Dialect() {
	case "mysql":
		w.exec("CREATE PROCEDURE committing() BEGIN DELETE FROM effect WHERE seq = 77; COMMIT; END")
		query = "CALL committing()"
	case "postgres": // the only mode that takes several statements in one text
		w.DB = testdb.OpenDSN(w.T, w.DSN+"&default_query_exec_mode=simple_protocol")
		w.restart()
	}
	var runs, found atomic.Int64
	d.On(w.Bus.Consumer("A", bus.ConsumerConfig{MaxAttempts: 3, Concurrency: 1}), func(ctx context.Context, tx T, m bus.Message[Paid]) error {
		runs.Add(1)
		if err := d.write(ctx, tx, m, 1); err != nil {
			return err
		}
		if m.Payload.Seq != 1 { // others of its batch are before it and behind it
			return nil
		}
		if err := d.Ways["Exec"](ctx, tx, query); err != nil {
			found.Add(1)
		}
		_ = d.write(ctx, tx, m, 2)
		return errors.New("and fails after it")
	})
	var events []bus.Event
	for i := range 6 {
		events = append(events, Paid{Order: fmt.Sprint(i), Seq: i})
	}
	w.save(events...)
	for range 2 {
		w.once()
		w.hurry()
	}
	require.Greater(w.T, runs.Load(), int64(6), "they were together at first, and ran again")
	require.Equal(w.T, 6, w.effects(1), "each once")
	require.Zero(w.T, w.effects(2), "nothing after the end")
	require.Positive(w.T, found.Load())
	w.requireSent(6)
}
