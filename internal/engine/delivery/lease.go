package delivery

import (
	"context"
	"slices"

	"github.com/bluecone-go/bluecone/internal/engine/claim"
)

// isLost reports whether somebody else may deliver the event by now.
func (d *delivery) isLost() bool {
	return (d.held != nil && d.held.IsLost()) || (d.own != nil && d.own.IsLost())
}

// guard is what runs, and has to stop when a lease of its deliveries is lost.
type guard struct {
	ds   []*delivery
	stop context.CancelCauseFunc
}

func (g *guard) look() {
	if slices.ContainsFunc(g.ds, (*delivery).isLost) {
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
func (l *Lanes) Lose(leases ...*claim.Lease) {
	if len(leases) == 0 {
		return
	}
	for _, lease := range leases {
		lease.Lose()
	}
	for _, ln := range l.lanes {
		ln.mu.Lock()
		for g := range ln.guards {
			g.look()
		}
		ln.mu.Unlock()
	}
}
