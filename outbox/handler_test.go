package outbox_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

// PostgreSQL refuses everything after a failed statement. A handler that swallows the error has
// failed, and is told why.
func TestSwallowedErrorOnPostgresIsAFailedAttempt(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testdb.Open(t, "postgres"))
	f.effects()
	bus.On(f.bus.Consumer("Careless", bus.ConsumerConfig{}), func(ctx context.Context, tx bun.Tx, m bus.Message[orderPaid]) error {
		if err := effect(ctx, tx, m, 1); err != nil {
			return err
		}
		_, _ = tx.ExecContext(ctx, "INSERT INTO nowhere VALUES (1)")
		return nil
	})
	f.save(orderPaid{OrderID: "1"})
	f.once()
	require.Equal(t, map[consumelog.Status]int{consumelog.Failed: 1}, f.deliveries())
	require.Equal(t, 1, f.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE attempts = 1 "+
		"AND error_message LIKE '%that the handler swallowed%'"))
	require.Zero(t, f.count("SELECT COUNT(*) FROM effect"))
}

// An attempt is stored whatever its error says.
func TestAnyErrorTextCanBeStored(t *testing.T) {
	t.Parallel()
	texts := []string{"", "NUL \x00", "\xff\xfe", strings.Repeat("长", 70_000), "'; DROP TABLE bc_outbox_event; --", "\U0001F600"}
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		bus.On(f.bus.Consumer("Bad", bus.ConsumerConfig{}), func(_ context.Context, _ bun.Tx, m bus.Message[orderPaid]) error {
			if m.Payload.Seq%2 == 0 {
				return bus.Skip("because " + texts[m.Payload.Seq/2])
			}
			return errors.New(texts[m.Payload.Seq/2])
		})
		for i := range 2 * len(texts) {
			f.save(orderPaid{OrderID: ids(100)[i], Seq: i})
		}
		f.once()
		require.Equal(t, map[consumelog.Status]int{consumelog.Failed: len(texts), consumelog.Skipped: len(texts)}, f.deliveries())
		require.Equal(t, len(texts), f.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE attempts = 1 AND status = 'FAILED'"))
		require.Equal(t, len(texts), f.count("SELECT COUNT(*) FROM bc_delivery_attempt"))
	})
}

// A handler's context ends with its timeout, and the attempt says so.
func TestHandlerTimesOut(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		bus.On(f.bus.Consumer("Slow", bus.ConsumerConfig{Timeout: 20 * time.Millisecond}),
			func(ctx context.Context, _ bun.Tx, _ bus.Message[orderPaid]) error {
				<-ctx.Done()
				return ctx.Err()
			})
		f.save(orderPaid{OrderID: "1"})
		f.once()
		require.Equal(t, map[consumelog.Status]int{consumelog.Failed: 1}, f.deliveries())
		require.Equal(t, 1, f.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE error_message LIKE '%20ms%'"), "the error names the timeout")
	})
}

// A handler that ignores its ended context is abandoned after a grace time: its transaction is
// rolled back, and the lane goes on.
func TestStuckHandlerIsAbandoned(t *testing.T) {
	t.Parallel()
	for _, dialect := range testdb.Servers() { // in SQLite it would hold the only writer
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, testdb.Open(t, dialect))
			f.effects()
			gate := make(chan struct{})
			defer close(gate)
			bus.On(f.bus.Consumer("Stuck", bus.ConsumerConfig{Timeout: 2 * time.Second, Concurrency: 1, Batch: 1}),
				func(ctx context.Context, tx bun.Tx, m bus.Message[orderPaid]) error {
					if m.AggregateID == "stuck" {
						<-gate
					}
					return effect(ctx, tx, m, 1)
				})
			f.save(orderPaid{OrderID: "stuck"}, orderPaid{OrderID: "next"})
			f.once()
			require.Equal(t, map[consumelog.Status]int{consumelog.Failed: 1, consumelog.Success: 1}, f.deliveries())
			require.Equal(t, 1, f.count("SELECT COUNT(*) FROM effect WHERE aggregate = 'next'"))
		})
	}
}
