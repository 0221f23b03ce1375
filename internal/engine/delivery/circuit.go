package delivery

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/bluecone-go/bluecone/internal/engine/flow"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/telemetry"
	"github.com/bluecone-go/bluecone/internal/text"
)

// outcomeOf is what a handler's error says about other deliveries, if anything.
func outcomeOf(err error) (o flow.Outcome, says bool) {
	var skip *handler.SkipError
	var later *handler.RetryAfterError
	var away *handler.UnavailableError
	switch {
	case errors.As(err, &skip):
		return flow.Succeeded, true
	case handler.IsPermanent(err):
		return flow.Failed, true
	case errors.As(err, &later):
		return 0, false
	case errors.As(err, &away):
		return flow.Unavailable, true
	case handler.IsUnreached(err):
		return flow.Unreached, true
	}
	return flow.Failed, true
}

// refuse ends a delivery whose handler has not succeeded: the circuit notes it, and the log.
func (r *runner) refuse(ctx context.Context, d *delivery, cause error) {
	r.ln.refused([]*delivery{d}, d)
	if o, says := outcomeOf(cause); says {
		r.ln.observe(ctx, o, d.isFirstRun(), cause)
	}
	r.out.fail(ctx, d, cause)
	if r.ln.isProbing() {
		r.rest()
	}
}

// observe tells the circuit how a delivery has ended. While it is not closed, new deliveries spill
// to the consume log, so that claims for other lanes go on.
func (ln *lane) observe(ctx context.Context, o flow.Outcome, first bool, cause error) {
	ln.mu.Lock()
	now := time.Now()
	changed := ln.speed.Circuit.Observe(o, first, now)
	state, wait := ln.speed.Circuit.State(now), ln.speed.Circuit.Pause(now)
	if state != flow.Closed && (first || changed) && !ln.isOver {
		ln.speed.Spill.Begin()
	}
	ln.mu.Unlock()
	switch {
	case !changed:
	case o == flow.Succeeded:
		ln.l.regs.Logger.InfoContext(ctx, "the consumer's circuit closed", telemetry.Consumer, ln.c.Name)
	default:
		time.AfterFunc(wait, ln.retries.refill)
		telemetry.Add(ctx, ln.l.regs.Metrics.CircuitOpened, 1, telemetry.Consumer, ln.c.Name)
		ln.l.regs.Logger.WarnContext(ctx, "the consumer's circuit opened: what it calls cannot be reached or used; its attempts do not count",
			telemetry.Consumer, ln.c.Name, telemetry.Delay, wait, telemetry.Err, text.Error(cause))
	}
}

// isProbing tells whether deliveries are tried one at a time.
func (ln *lane) isProbing() bool {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	return ln.speed.IsHalfOpen(time.Now())
}

// untilNextLook is how long what cannot run now is put off: until the circuit lets the next one through, or a second.
func (ln *lane) untilNextLook() time.Duration {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if pause := ln.speed.Circuit.Pause(time.Now()); pause > 0 {
		return min(pause, time.Second)
	}
	return time.Second
}

// rest is the pause between two attempts of a half-open circuit.
func (r *runner) rest() {
	select {
	case <-time.After(flow.RestAfterFailure):
	case <-r.l.work.Done():
	}
}

// isHaltedLocked reports whether the lane must not start anything now: its consumer is paused by an
// operator, or its circuit is open. It needs the lane's mu.
func (ln *lane) isHaltedLocked() bool {
	return ln.speed.Circuit.State(time.Now()) == flow.Open || ln.l.isPaused(ln.c)
}

// isPaused reports whether an operator has paused the consumer.
func (l *Lanes) isPaused(c *handler.Consumer) bool {
	return l.cfg.Roster.IsPaused(c.Key) || (c.Replays != nil && l.cfg.Roster.IsPaused(c.Replays.Key))
}

// isBroken reports whether the circuit has opened, and nothing has succeeded since.
func (ln *lane) isBroken() bool {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	return ln.speed.Circuit.HasOpened()
}

func (ln *lane) isHalted() bool {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	return ln.isHaltedLocked()
}

// adjust changes how much the lane does.
func (ln *lane) adjust(change func(*flow.Speed)) {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	change(&ln.speed)
}

// refused notes that a handler has refused one of the deliveries that shared a transaction: for a while fewer of its group do.
func (ln *lane) refused(ds []*delivery, culprit *delivery) {
	ln.adjust(func(s *flow.Speed) { s.Parts.Shrink(culprit.group(), alike(ds, culprit)) })
}

// alike is how many of the deliveries are of the same group as one of them.
func alike(ds []*delivery, one *delivery) (n int) {
	for _, d := range ds {
		if d.group() == one.group() {
			n++
		}
	}
	return n
}

// accepted notes that handlers have accepted deliveries of one kind.
func (ln *lane) accepted(ctx context.Context, ds []*delivery) {
	ln.adjust(func(s *flow.Speed) { s.Parts.Grow(ds[0].group(), alike(ds, ds[0])) })
	ln.observe(ctx, flow.Succeeded, false, nil)
}

// together is how many of the deliveries, from the first, should share a transaction, after what handlers have refused lately.
func (ln *lane) together(ds []*delivery) int {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	parts, first := &ln.speed.Parts, ds[0].group()
	n := slices.IndexFunc(ds, func(d *delivery) bool { return !parts.Joins(first, d.group()) })
	if n < 0 {
		n = len(ds)
	}
	return parts.Limit(first, n)
}
