package monolith

import (
	"context"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/bluecone-go/bluecone/ops"
	"github.com/bluecone-go/bluecone/outbox"
)

const (
	// mostPending is how many events may wait before new orders are slowed down: what a small machine delivers in ten seconds.
	mostPending  = 1000
	measureEvery = time.Second
	// longestWait is how much longer an order takes at most.
	longestWait = time.Second
	lookEvery   = 50 * time.Millisecond
)

// Pace slows new orders down while more events are saved than delivered: otherwise customers get a fast answer now, and their
// coupons, money and points ever later. Payments, cancels and refunds never wait: they end what has begun.
type Pace struct {
	outbox  *outbox.Outbox
	ops     *ops.Ops
	lagging atomic.Bool
}

// Run measures the backlog until ctx ends.
func (p *Pace) Run(ctx context.Context) error {
	tick := time.NewTicker(measureEvery)
	defer tick.Stop()
	for failed := false; ; {
		lagging, err := p.measure(ctx)
		p.lagging.Store(lagging)
		if err != nil && !failed && ctx.Err() == nil { // an outage is told of once
			slog.WarnContext(ctx, "the backlog cannot be measured: new orders do not wait for it", "error", err)
		}
		failed = err != nil
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// measure reports whether the bus lags behind. If something waits for a consumer that does not run, the backlog says nothing: it would
// grow with fewer orders, too.
func (p *Pace) measure(ctx context.Context) (lagging bool, err error) {
	b, err := p.outbox.Backlog(ctx)
	if err != nil || b.Pending <= mostPending {
		return false, err
	}
	consumers, err := p.ops.Consumers(ctx)
	return err == nil && !slices.ContainsFunc(consumers, isHeldUp), err
}

// isHeldUp reports whether deliveries wait for a consumer that is paused, that no instance has, or whose service is away.
func isHeldUp(c ops.Consumer) bool {
	return c.State != ops.Running && c.Waiting.Count+c.Failed.Count > 0
}

// Lagging reports whether new orders wait.
func (p *Pace) Lagging() bool { return p.lagging.Load() }

// Wait returns when the bus keeps up, after a second, or when ctx ends.
func (p *Pace) Wait(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, longestWait)
	defer cancel()
	for p.Lagging() {
		select {
		case <-ctx.Done():
			return
		case <-time.After(lookEvery):
		}
	}
}
