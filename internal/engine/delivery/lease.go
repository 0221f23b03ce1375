package delivery

import (
	"context"
	"slices"
	"sync/atomic"
)

// Lease is the right of a publisher to deliver an event, until it is lost. It is no context: those of
// each event would have to be known to each batch, and nearly none of them ever ends.
type Lease struct {
	// Version is the token of the lease.
	Version int64

	until atomic.Int64
	lost  atomic.Bool
}

// Extend says when the lease ends, in microseconds since the epoch by the database's clock.
func (l *Lease) Extend(until int64) { l.until.Store(until) }

// lost reports whether somebody else may deliver the event by now.
func (d *delivery) lost() bool {
	return (d.held != nil && d.held.lost.Load()) || (d.own != nil && d.own.lost.Load())
}

// guard is what runs, and has to stop when a lease of its deliveries is lost.
type guard struct {
	ds   []*delivery
	stop context.CancelCauseFunc
}

func (g *guard) look() {
	if slices.ContainsFunc(g.ds, (*delivery).lost) {
		g.stop(errLeaseGone)
	}
}

// guard calls stop when a lease of the deliveries is lost, until it is over.
func (ln *lane) guard(ds []*delivery, stop context.CancelCauseFunc) (over func()) {
	g := &guard{ds, stop}
	ln.mu.Lock()
	ln.guards[g] = struct{}{}
	ln.mu.Unlock()
	g.look() // what was lost before
	return func() {
		ln.mu.Lock()
		defer ln.mu.Unlock()
		delete(ln.guards, g)
	}
}

// Lose stops what runs under the leases: they have passed to another instance.
func (l *Lanes) Lose(leases ...*Lease) {
	if len(leases) == 0 {
		return
	}
	for _, lease := range leases {
		lease.lost.Store(true)
	}
	for _, ln := range l.lanes {
		ln.mu.Lock()
		for g := range ln.guards {
			g.look()
		}
		ln.mu.Unlock()
	}
}
