package bus

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"syscall"
	"time"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/telemetry"
	"github.com/bluecone-go/bluecone/internal/text"
)

// circuit stops a consumer whose handler cannot reach what it calls, or whose statements do not fit
// the tables. Attempts that fail for that reason do not count: no event becomes DEAD because a
// service was away or a migration was late. After a few of them in a
// row the consumer is left alone, longer every time, until one succeeds.
type circuit struct {
	failures int
	pause    time.Duration
	until    time.Time // closed before
}

const (
	circuitTrips  = 3
	circuitPause  = time.Second
	circuitLonger = 5 * time.Minute
)

// pointless reports whether a handler's error says that trying the next event would end in the same
// way: the other side was not reached, or went away, or a table is not as the code takes it to be.
func pointless(err error) bool {
	if later := (*retryAfterError)(nil); errors.As(err, &later) {
		return false // the handler knows better
	}
	if dialect.Classify(err) == dialect.Schema {
		return true
	}
	var dns *net.DNSError
	var op *net.OpError
	if errors.As(err, &dns) || errors.As(err, &op) {
		return true
	}
	for _, e := range []error{syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.EPIPE, io.ErrUnexpectedEOF} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// trip notes that the consumer could not work. It returns how long to wait.
func (c *circuit) trip(now time.Time) (wait time.Duration, opened bool) {
	c.failures++
	if c.failures < circuitTrips {
		return circuitPause, false
	}
	if now.Before(c.until) { // one that was on its way already
		return c.until.Sub(now), false
	}
	c.pause = min(max(2*c.pause, circuitPause), circuitLonger)
	c.until = now.Add(c.pause*3/4 + rand.N(c.pause/2))
	return c.until.Sub(now), true
}

// broken notes that the consumer cannot work, and returns after what time to try the delivery again.
func (ln *lane) broken(ctx context.Context, cause error) time.Duration {
	ln.mu.Lock()
	wait, opened := ln.circuit.trip(time.Now())
	ln.mu.Unlock()
	if opened {
		telemetry.Add(ctx, ln.l.bus.metrics.CircuitOpened, 1, telemetry.Consumer, ln.c.name)
		ln.l.bus.logger.WarnContext(ctx, "consumer is paused because what it calls cannot be reached or used; its attempts do not count", telemetry.Consumer, ln.c.name, telemetry.Delay, wait, telemetry.Err, text.Error(cause))
	}
	return wait
}

// mended notes a success.
func (ln *lane) mended(ctx context.Context) {
	ln.mu.Lock()
	was := ln.circuit
	ln.circuit = circuit{}
	ln.mu.Unlock()
	if !was.until.IsZero() {
		ln.l.bus.logger.InfoContext(ctx, "consumer works again", telemetry.Consumer, ln.c.name)
	}
}

// halted reports whether the lane must not start anything now: its consumer is paused by an
// operator, or its circuit is open. It needs ln.mu.
func (ln *lane) halted() bool {
	return time.Now().Before(ln.circuit.until) || ln.l.host.Paused(ln.c.key) || (ln.c.replays != nil && ln.l.host.Paused(ln.c.replays.key))
}

// isBroken reports whether the circuit has opened, and nothing has succeeded since.
func (ln *lane) isBroken() bool {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	return !ln.circuit.until.IsZero()
}

func (ln *lane) isHalted() bool {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	return ln.halted()
}
