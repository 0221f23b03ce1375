package pulled

import (
	"context"

	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/telemetry"
)

// count counts what has become of a delivery here, as a publisher does; runs and their times are counted where handlers are called.
func (c *Consumer) count(ctx context.Context, m *handler.Message, a Answer) {
	all := c.regs.Metrics
	counter := all.Refused
	switch {
	case a.Outcome == Later:
		return
	case a.Outcome == Skipped:
		counter = all.Skipped
	case a.Outcome == Success && a.isRepeated:
		counter = all.Idempotent
	case a.Outcome == Success:
		counter = all.Consumed
	}
	telemetry.Add(ctx, counter, 1, telemetry.Consumer, c.c.Name, telemetry.EventType, m.Event.Type)
}

// CountLostLease counts a delivery that somebody else has now.
func (c *Consumer) CountLostLease(ctx context.Context) {
	telemetry.Add(ctx, c.regs.Metrics.LeaseLost, 1, telemetry.Consumer, c.c.Name)
}

// CountFailedCall counts a call of the ledger that has failed.
func (c *Consumer) CountFailedCall(ctx context.Context) {
	telemetry.Add(ctx, c.regs.Metrics.LedgerRefused, 1, telemetry.Consumer, c.c.Name)
}

const inFlight = "consumer.ledger.in_flight"

// Measure makes all that is counted of the consumer exist, and a gauge of the deliveries that it has in flight. Call the result to end
// the gauge.
func (c *Consumer) Measure(ctx context.Context, count func() int) (end func() error, err error) {
	all := c.regs.Metrics
	all.ZeroConsumer(ctx, c.c.Name, c.EventTypes())
	telemetry.Zero(ctx, []string{telemetry.Consumer, c.c.Name}, all.LedgerRefused)
	return all.Gauges(func(_ context.Context, set func(name string, v float64, kv ...string)) error {
		set(inFlight, float64(count()), telemetry.Consumer, c.c.Name)
		return nil
	}, telemetry.Gauge{Name: inFlight, Help: "Deliveries that a ledger has given and that have not been acknowledged."})
}
