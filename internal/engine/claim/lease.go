package claim

import "sync/atomic"

// Lease is the right of a publisher to deliver an event, or of a lane to run a delivery, until it is lost. It is no context: those
// of each event would have to be known to each batch, and nearly none of them ever ends. It is safe for concurrent use.
type Lease struct {
	// Version is the token of the lease.
	Version int64

	until atomic.Int64
	lost  atomic.Bool
}

// Extend says when the lease ends, in microseconds since the epoch by the database's clock.
func (l *Lease) Extend(until int64) { l.until.Store(until) }

// IsOver reports whether the lease has ended at a time, in microseconds since the epoch by the database's clock.
func (l *Lease) IsOver(now int64) bool { return now >= l.until.Load() }

// Lose notes that somebody else may have the event or the delivery by now.
func (l *Lease) Lose() { l.lost.Store(true) }

// IsLost reports whether somebody else may have it.
func (l *Lease) IsLost() bool { return l.lost.Load() }
