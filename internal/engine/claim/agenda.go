package claim

import "time"

const (
	// Often is how soon a publisher that has something to do looks again at what else has fallen due.
	Often = 250 * time.Millisecond
	// lookShare limits what looks cost: one tenth of the time.
	lookShare = 10
)

// Agenda is what a publisher knows to be due, and when it looks again. The zero value knows nothing, and wants to look.
type Agenda struct {
	due    Kinds
	turns  Turns
	looked time.Time     // when the last look ended
	took   time.Duration // how long it took
	worked time.Time     // since when there was something to do, zero if there was not since the last look
}

// Add notes that work of these kinds is due.
func (a *Agenda) Add(now time.Time, found Kinds) {
	if a.due |= found; found != 0 {
		a.Worked(now)
	}
}

// Worked notes that there was something to do, by whichever way it was found.
func (a *Agenda) Worked(now time.Time) {
	if a.worked.IsZero() {
		a.worked = now
	}
}

// Due are the kinds that are known to be due.
func (a *Agenda) Due() Kinds { return a.due }

// Next is the kind that has its turn, of those that are due and ready. It reports false if there is none.
func (a *Agenda) Next(ready Kinds) (Kind, bool) { return a.turns.Next(a.due & ready) }

// Taken notes that a kind has had its turn, and whether more of it is due.
func (a *Agenda) Taken(k Kind, more bool) {
	a.turns.Take(k)
	if !more {
		a.due = a.due.Without(k)
	}
}

// Looked notes a look, which has found work of these kinds.
func (a *Agenda) Looked(began, ended time.Time, found Kinds) {
	a.looked, a.took, a.worked = ended, ended.Sub(began), time.Time{}
	a.Add(ended, a.due|found)
}

// NextLook is when to look again: soon after there was something to do, after the idle interval otherwise.
func (a *Agenda) NextLook(idle time.Duration) time.Time {
	seldom := a.looked.Add(max(Often, idle))
	if a.worked.IsZero() {
		return a.looked.Add(idle)
	}
	soon := a.worked.Add(max(min(Often, idle), lookShare*a.took))
	if soon.Before(seldom) {
		return soon
	}
	return seldom
}
