package claim

import (
	"time"

	"github.com/bluecone-go/bluecone/internal/store"
)

// Watermark remembers up to which moment NEW events have been claimed, so that the next claim starts there. It also says
// when claims are not worth it for a while. The zero value works.
//
// A database keeps the index entries of events that are no longer NEW until nobody can need them:
// for a moment under load, for hours while a backup holds a snapshot open. A claim that starts at
// the start walks over all of them. But what is due at an earlier moment may still commit, or be
// put back. So every now and then, and before it says that nothing is due, a claim starts at the
// start after all, as often as takes a tenth of the time.
type Watermark struct {
	low   store.Cursor
	whole time.Time // when the last claim from the start ended
	took  time.Duration

	isCrowded bool // others worked on most of what the last claim saw, or on what is before it

	restingSince time.Time // since when claims are not worth it, zero if they are
	busyUntil    time.Time // how long, while this instance has something to do
	idleUntil    time.Time // how long, while it has not
}

const (
	wholeShare   = 10 // of the time, claims from the start take one part
	blockedShare = 5  // of the time, claims that find little but what is blocked take one part
	mostRest     = 250 * time.Millisecond
	tie          = 1000 // microseconds: SQLite rounds to a millisecond
)

// BlockedFor is when to look again at events that were left alone for the sake of earlier ones, at least: a claim takes
// long when all instances make one.
const BlockedFor = 25 * time.Millisecond

// Start is where the next claim starts. isWhole asks for the start.
func (m *Watermark) Start(now time.Time, isWhole bool) store.Cursor {
	if !m.restingSince.IsZero() { // the claim after a rest goes on where the one before it has ended
		m.whole = m.whole.Add(now.Sub(m.restingSince))
		m.restingSince = time.Time{}
	}
	if isWhole || m.UntilWhole(now) <= 0 {
		return store.Cursor{}
	}
	return m.low
}

// UntilWhole is how long it is until the next claim from the start.
func (m *Watermark) UntilWhole(now time.Time) time.Duration {
	return wholeShare*m.took - now.Sub(m.whole)
}

// Rest keeps claims away for a while after one that took so long and found events that others block: it costs as much as
// one that finds some, and the others have to work as well. An instance that has nothing to do rests for a shorter time, so
// that not all rest. Rest answers after what time to ask [Watermark.Rests] again.
func (m *Watermark) Rest(now time.Time, took time.Duration) time.Duration {
	m.restingSince = now
	m.busyUntil = now.Add(min(max((blockedShare-1)*took, BlockedFor), mostRest))
	m.idleUntil = now.Add(min(max(took, BlockedFor), mostRest))
	return BlockedFor
}

// Rests answers 0 if claims are worth it, and after what time to ask again otherwise.
func (m *Watermark) Rests(now time.Time, isIdle bool) time.Duration {
	until := m.busyUntil
	if isIdle {
		until = m.idleUntil
	}
	return min(max(until.Sub(now), 0), BlockedFor)
}

// IsCrowded tells whether others worked on most of what the last claim saw. The next one looks before it locks.
func (m *Watermark) IsCrowded() bool { return m.isCrowded }

// Observe notes a claim of NEW events that ended now and took so long, and whether it looked before it locked. One from the
// start that finds it blocked does not lose how far earlier ones have got.
func (m *Watermark) Observe(now time.Time, r Result, took time.Duration, hasLooked bool) {
	before := m.low
	m.isCrowded = hasLooked && r.IsMostlyBlocked()
	isWhole := r.From == store.Cursor{}
	if isWhole {
		m.whole, m.took = now, took
	}
	switch {
	case r.Seen == 0:
	case len(r.Rows) == 0 && r.IsFull:
		m.low = r.Last // however many are due at that moment
	case r.Last.DueAt != store.NoTime:
		m.low = store.Cursor{DueAt: max(r.Last.DueAt-tie, 0)}
	}
	if isWhole && r.IsMostlyBlocked() && m.low.IsBefore(before) {
		m.low = before
	}
}
