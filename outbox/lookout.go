package outbox

import (
	"time"

	"github.com/bluecone-go/bluecone/internal/store"
)

// lookout remembers up to which moment NEW events have been claimed, so that the next claim
// starts there.
//
// A database keeps the index entries of events that are no longer NEW until nobody can need them:
// for a moment under load, for hours while a backup holds a snapshot open. A claim that starts at
// the front walks over all of them. But what is due at an earlier moment may still commit, or be
// put back. So every now and then, and before it says that nothing is due, a claim starts at the
// front after all, as often as takes a tenth of the time.
type lookout struct {
	low   store.Cursor
	whole time.Time // when the last claim from the front ended
	took  time.Duration

	crowded bool // others had most of what the last claim saw in hand, or what is before it

	resting time.Time // since when claims are not worth it, zero if they are
	rested  time.Time // until when, while there is something to do
	hungry  time.Time // until when, while there is not
	waiting bool      // for a signal that it is time
}

const (
	wholeShare   = 10
	blockedShare = 5 // of claims that find little but what is behind the events of other instances
	// blockedFor is when to look again at events that were left alone for the sake of earlier ones, at least,
	// and restMost at most: a claim takes long when all instances make one.
	blockedFor = 25 * time.Millisecond
	restMost   = 250 * time.Millisecond
)

// from is where the next claim starts.
func (l *lookout) from(thorough bool) store.Cursor {
	if !l.resting.IsZero() { // the claim after a rest goes on where the one before it has ended
		l.whole = l.whole.Add(time.Since(l.resting))
		l.resting = time.Time{}
	}
	if thorough || l.wait() <= 0 {
		return store.Cursor{}
	}
	return l.low
}

// wait is how long it is until the next claim from the front.
func (l *lookout) wait() time.Duration { return wholeShare*l.took - time.Since(l.whole) }

// later signals when it is time for a claim from the front.
func (l *lookout) later(wait time.Duration, front chan<- struct{}) {
	if !l.waiting {
		l.waiting = true
		time.AfterFunc(wait, func() { signal(front) })
	}
}

// rest keeps claims away for a while after one that took so long and found events that others are in the
// way of: it costs as much as one that finds some, and the others have to work as well. Who has nothing
// to do rests for a shorter time, lest all rest.
func (l *lookout) rest(took time.Duration, front chan<- struct{}) {
	l.resting = time.Now()
	l.rested = l.resting.Add(min(max((blockedShare-1)*took, blockedFor), restMost))
	l.hungry = l.resting.Add(min(max(took, blockedFor), restMost))
	l.later(blockedFor, front)
}

// rests tells whether claims are not worth it yet. Then it signals when to ask again.
func (l *lookout) rests(dry bool, front chan<- struct{}) bool {
	until := l.rested
	if dry {
		until = l.hungry
	}
	wait := time.Until(until)
	if wait > 0 {
		l.later(min(wait, blockedFor), front)
	}
	return wait > 0
}

// saw notes a claim that took so long.
func (l *lookout) saw(c claim, took time.Duration) {
	if c.from == (store.Cursor{}) {
		l.whole, l.took = time.Now(), took
	}
	switch {
	case c.seen == 0:
	case len(c.rows) == 0 && c.full:
		l.low = c.last // however many are due at that moment
	case c.last.DueAt != store.NoTime:
		const tie = 1000 // microseconds: SQLite rounds to a millisecond
		l.low = store.Cursor{DueAt: max(c.last.DueAt-tie, 0)}
	}
}

// notBefore goes on where an earlier claim has ended, behind what is blocked at the front.
func (l *lookout) notBefore(low store.Cursor) {
	if l.low.IsBefore(low) {
		l.low = low
	}
}
