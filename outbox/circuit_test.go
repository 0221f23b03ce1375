package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// errRefused is what a handler answers that cannot reach the service it calls.
var errRefused = &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}

type orderRefunded struct{ orderPaid }

func (orderRefunded) EventType() string { return "order.refunded" }

// A consumer that is refused a fifth of the aggregates, for ever, delivers the others all the same, and those that
// are saved while it is refused them again and again.
func TestRefusedAggregatesHoldUpNoHealthyOnes(t *testing.T) {
	t.Parallel()
	for name, refusal := range map[string]error{"error of the handler": errHandler, "connection refused": errRefused} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testdb.Each(t, func(t *testing.T, db *bun.DB) {
				f := newFixture(t, db)
				f.effects()
				var refused atomic.Int64
				bus.On(f.bus.Consumer("A", bus.ConsumerConfig{}), func(ctx context.Context, tx bun.Tx, m bus.Message[orderPaid]) error {
					if strings.HasPrefix(m.Payload.OrderID, "refused") {
						refused.Add(1)
						return refusal
					}
					return effect(ctx, tx, m, m.Payload.Seq)
				})
				var events []bus.Event
				for _, id := range ids(10) {
					events = append(events, orderPaid{OrderID: "refused-" + id})
				}
				for _, id := range ids(40) {
					events = append(events, orderPaid{OrderID: id})
				}
				f.save(events...)
				began := time.Now()
				f.run(outbox.PublisherConfig{})
				healthy := func(n int) {
					t.Helper()
					require.Eventually(t, func() bool {
						return f.count("SELECT COUNT(*) FROM effect") == n
					}, 30*time.Second, 10*time.Millisecond, "the healthy ones")
				}
				healthy(40)
				t.Logf("40 healthy events were delivered after %v", time.Since(began).Round(10*time.Millisecond))
				f.eventually(func() bool { return refused.Load() >= 25 }, "the others are refused again")
				f.save(orderPaid{OrderID: "late"})
				healthy(41)
			})
		})
	}
}

// Deliveries that ask for another run later, because others of their consumer come first, do not keep those from running,
// however many they are: what has never run is claimed before what runs again.
func TestRetryAfterDoesNotHoldUpWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		var paid sync.Map
		c := f.bus.Consumer("A", bus.ConsumerConfig{Queue: 50})
		bus.On(c, func(ctx context.Context, tx bun.Tx, m bus.Message[orderPaid]) error {
			paid.Store(m.Payload.Seq, true)
			return effect(ctx, tx, m, m.Payload.Seq)
		})
		bus.On(c, func(_ context.Context, _ bun.Tx, m bus.Message[orderRefunded]) error {
			if _, ok := paid.Load(m.Payload.Seq); !ok {
				return bus.RetryAfter(errors.New("not paid yet"), 10*time.Millisecond)
			}
			return nil
		})
		const n = 100
		var refunds, payments []bus.Event
		for i := range n {
			refunds = append(refunds, orderRefunded{orderPaid{OrderID: fmt.Sprint("refund-", i), Seq: i}})
			payments = append(payments, orderPaid{OrderID: fmt.Sprint("payment-", i), Seq: i})
		}
		f.run(outbox.PublisherConfig{Poll: 50 * time.Millisecond})
		f.save(refunds...)
		f.eventually(func() bool {
			return f.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE status IN ('FAILED', 'PROCESSING')") >= n/2
		}, "the refunds wait")
		f.save(payments...)
		f.eventually(func() bool { return f.statuses()[outbox.StatusSent] == 2*n }, "payments, and then refunds")
		require.Zero(t, f.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE attempts <> 1"))
	})
}

// A handler that says that its service is away opens the circuit at once, and no attempt counts.
func TestUnavailableOpensTheCircuit(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		var away atomic.Bool
		var calls atomic.Int64
		away.Store(true)
		bus.OnExternal(f.bus.Consumer("Sms", bus.ConsumerConfig{Concurrency: 1, MaxAttempts: 1}),
			func(context.Context, bus.Message[orderPaid]) error {
				calls.Add(1)
				if away.Load() {
					return bus.Unavailable(errors.New("HTTP 503"))
				}
				return nil
			})
		for _, id := range ids(10) {
			f.save(orderPaid{OrderID: id})
		}
		f.once()
		require.Less(t, calls.Load(), int64(5), "the first opens it")
		require.Zero(t, f.deliveries()[consumelog.Dead])
		away.Store(false)
		f.run(outbox.PublisherConfig{Poll: 50 * time.Millisecond})
		f.eventually(func() bool { return f.statuses()[outbox.StatusSent] == 10 }, "it works again by itself")
		require.Equal(t, 10, f.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE status = 'SUCCESS' AND attempts = 1"))
	})
}
