package attempts_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/dbserver"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/migrations"
	"github.com/bluecone-go/bluecone/outbox"
)

// Promises 2, 3, 4 and 8, "whatever the database's clock does": it leaps a day ahead, then an hour back, while a handler is
// at work, events are in flight at two instances, and no instance of one consumer runs. The lease of what runs is out by the
// clock, and others may take it over.
func TestDatabaseClockThatLeapsLosesNothing(t *testing.T) {
	t.Parallel()
	for _, name := range testdb.Servers() {
		if name == "mysql9" {
			continue // each statement takes ten times as long under libfaketime
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if !dbserver.CanFakeTime() {
				testdb.Unavailable(t, "libfaketime", errors.New("no server can have a clock of its own"))
			}
			srv, err := dbserver.Start(name, dbserver.Durable, dbserver.OwnClock())
			if err != nil {
				testdb.Unavailable(t, name, err)
			}
			t.Cleanup(srv.Stop)
			_, err = testdb.OpenDSN(t, srv.URL.String()).ExecContext(t.Context(), "CREATE DATABASE attempts")
			require.NoError(t, err)
			u := *srv.URL
			u.Path = "/attempts"
			open := func() *bun.DB { return testdb.OpenDSN(t, u.String()) }
			db := open()
			require.NoError(t, migrations.Up(t.Context(), db))

			away := newWorld(t, db)
			away.counting("Away", bus.ConsumerConfig{})
			away.once() // it is registered, and leaves
			started, release := make(chan struct{}, 10), make(chan struct{})
			w, other := newWorld(t, open()), newWorld(t, open())
			for _, in := range []*world{w, other} {
				bus.On(in.bus.Consumer("A", bus.ConsumerConfig{Concurrency: 2}), func(ctx context.Context, tx bun.Tx, m bus.Message[paid]) error {
					if m.AggregateID == "held" {
						started <- struct{}{}
						select {
						case <-release:
						case <-ctx.Done():
							return ctx.Err()
						}
					}
					return write(ctx, tx, m, m.Payload.Seq)
				})
				in.run(outbox.PublisherConfig{Lease: 3 * time.Second})
			}
			saved := 0
			save := func() {
				for range 30 {
					w.save(paid{ID: id(saved % 3), Seq: saved})
					saved++
				}
			}
			for _, ahead := range []time.Duration{24 * time.Hour, 23 * time.Hour} {
				w.save(paid{ID: "held", Seq: saved})
				saved++
				w.wait(started, "the handler that is held")
				save()
				require.NoError(t, srv.SetClock(ahead))
				w.eventually(func() bool { return (w.clock() - ahead).Abs() < 10*time.Minute }, "the leap")
				save()
				w.eventually(func() bool {
					select {
					case release <- struct{}{}: // another instance has it in flight
					default:
					}
					return w.effects() == saved
				}, "all that was saved")
			}
			require.Equal(t, saved, w.count("SELECT COUNT(*) FROM bc_outbox_event WHERE status <> 'SENT'"),
				"they wait for the consumer that is away")
			away.run(outbox.PublisherConfig{})
			w.eventually(func() bool { return w.statuses()[outbox.StatusSent] == saved }, "those of the consumer that was away")
			require.Equal(t, 2*saved, w.effects())
			require.Zero(t, w.count("SELECT COUNT(*) FROM effect a JOIN effect b ON a.consumer = b.consumer AND a.aggregate = b.aggregate "+
				"AND a.id < b.id AND a.seq >= b.seq"), "out of order, or twice")
		})
	}
}

// clock is how far the database's clock is ahead of the machine's.
func (w *world) clock() time.Duration {
	w.t.Helper()
	now := map[string]string{
		"mysql": "SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) AS SIGNED)",
		"pg":    "SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS BIGINT)",
	}[dialect(w.db)]
	return time.Until(time.Unix(int64(w.count(now)), 0))
}
