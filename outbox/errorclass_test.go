package outbox_test

import (
	"context"
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

// A statement that does not fit the tables is the code's fault: its consumer stops, no attempt
// counts, and it goes on when the migration has come.
func TestSchemaErrorStopsItsConsumerAndCountsNothing(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		f.counting("Healthy", bus.ConsumerConfig{})
		var calls atomic.Int64
		bus.On(f.bus.Consumer("Early", bus.ConsumerConfig{MaxAttempts: 1}), func(ctx context.Context, tx bun.Tx, m bus.Message[orderPaid]) error {
			calls.Add(1)
			_, err := tx.ExecContext(ctx, "INSERT INTO to_come (id) VALUES (?)", m.Payload.Seq)
			return err
		})
		const n = 100
		events := make([]bus.Event, n)
		for i, id := range ids(len(events)) {
			events[i] = orderPaid{OrderID: id, Seq: i}
		}
		f.save(events...)
		f.run(outbox.PublisherConfig{Poll: 20 * time.Millisecond})
		f.eventually(func() bool { return f.count("SELECT COUNT(*) FROM effect") == n }, "nobody else waits")
		f.eventually(func() bool {
			return f.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE consumer_name = 'Early'") == n
		}, "all of them wait in the log")
		require.Zero(t, f.deliveries()[consumelog.Dead])
		require.Less(t, calls.Load(), int64(n), "it is left alone after a few calls")
		f.exec("CREATE TABLE to_come (id INT PRIMARY KEY)")
		f.eventually(func() bool { return f.statuses()[outbox.StatusSent] == n }, "it goes on by itself")
		require.Equal(t, n, f.count("SELECT COUNT(*) FROM to_come"))
	})
}

// A value that does not fit never will: the delivery is DEAD after one attempt, and the others go on.
func TestDataErrorIsDeadAtOnce(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.exec("CREATE TABLE narrow (word VARCHAR(3) NOT NULL CHECK (LENGTH(word) <= 3))")
		bus.On(f.bus.Consumer("Narrow", bus.ConsumerConfig{}), func(ctx context.Context, tx bun.Tx, m bus.Message[orderPaid]) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO narrow (word) VALUES (?)", m.Payload.OrderID)
			return err
		})
		f.save(orderPaid{OrderID: "one"}, orderPaid{OrderID: "three"}, orderPaid{OrderID: "two"})
		f.once()
		require.Equal(t, map[consumelog.Status]int{consumelog.Success: 2, consumelog.Dead: 1}, f.deliveries())
		require.Equal(t, 1, f.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE status = 'DEAD' AND attempts = 1"))
		require.Equal(t, 2, f.count("SELECT COUNT(*) FROM narrow"))
	})
}
