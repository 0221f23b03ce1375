package outbox

import "time"

// lookout remembers up to which moment NEW events have been claimed, so that the next claim
// starts there.
//
// A database keeps the index entries of events that are no longer NEW until nobody can need them:
// for a moment under load, for hours while a backup holds a snapshot open. A claim that starts at
// the front walks over all of them. But what is due at an earlier moment may still commit, or be
// put back. So every now and then, and before it says that nothing is due, a claim starts at the
// front after all, as often as takes a tenth of the time.
type lookout struct {
	low   int64     // microseconds, 0 for none
	whole time.Time // when the last claim from the front ended
	took  time.Duration

	rested  time.Time // until when claims are not worth it
	waiting bool      // for a signal that it is time
}

const (
	wholeShare   = 10
	blockedShare = 5 // of claims that find little but what is behind the events of other instances
	// blockedFor is when to look again at events that were left alone for the sake of earlier ones, at least.
	blockedFor = 25 * time.Millisecond
)

// from is where the next claim starts: 0 is the front.
func (l *lookout) from(thorough bool) int64 {
	if thorough || l.wait() <= 0 {
		return 0
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
// way of: it costs as much as one that finds some, and the others have to work as well.
func (l *lookout) rest(took time.Duration, front chan<- struct{}) {
	wait := max(blockedFor, (blockedShare-1)*took)
	l.rested = time.Now().Add(wait)
	l.whole = l.whole.Add(wait) // the claim after the rest goes on where this one has ended
	l.later(wait, front)
}

// resting tells whether claims are not worth it yet. Then it signals when they are.
func (l *lookout) resting(front chan<- struct{}) bool {
	wait := time.Until(l.rested)
	if wait > 0 {
		l.later(wait, front)
	}
	return wait > 0
}

// saw notes a claim that began at from, took so long, and found nothing or events due up to last.
func (l *lookout) saw(from int64, took time.Duration, last int64) {
	if from == 0 {
		l.whole, l.took = time.Now(), took
	}
	if last > 0 {
		const tie = 1000 // microseconds: SQLite rounds to a millisecond
		l.low = last - tie
	}
}

// notBefore goes on where an earlier claim has ended, behind what is blocked at the front.
func (l *lookout) notBefore(low int64) { l.low = max(l.low, low) }
