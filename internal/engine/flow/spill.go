package flow

import "time"

// Spill tells when a lane that is full has kept others waiting for too long: then its deliveries go to the consume log until
// it has caught up. The zero value is a lane that gets its deliveries directly.
type Spill struct {
	isActive bool
	looked   time.Time     // when it was last observed
	debt     time.Duration // how long others were starved because this one was full, less the time they were not
}

const (
	// spillAfter is how long, all in all, lanes that have run empty wait for one that is full, and spillBatches
	// is for how many of its batches at least: many instances on one machine make every batch slow, and
	// the way through the consume log would make all of them slower.
	spillAfter   = time.Second
	spillBatches = 20
	// slowSpillAfter is how long a lane must take for half its queue for others to wait no longer than that, if
	// a call of its handler takes many times as long as one of theirs, and longer than the rest of its
	// transaction: a machine under load makes all of that slow, and some of them slower for a moment.
	slowSpillAfter = time.Second / 10
	slowFactor     = 8
	// mostObserved is how much of the time between two looks counts: between two looks that are far apart much may have changed unseen.
	mostObserved = spillAfter / 3
)

// Observe notes whether others have been starved since the last time because this lane is full. If they were for longer than
// the limit, the lane spills.
func (s *Spill) Observe(now time.Time, isHoldingUp bool, limit time.Duration) {
	passed := min(now.Sub(s.looked), mostObserved)
	s.looked = now
	if !isHoldingUp {
		s.debt = max(s.debt-passed, 0)
		return
	}
	s.debt += passed
	s.isActive = s.isActive || s.debt > limit
}

// IsActive tells whether the lane's deliveries go to the consume log.
func (s *Spill) IsActive() bool { return s.isActive }

// Begin makes the lane's deliveries go to the consume log, without waiting for others to starve.
func (s *Spill) Begin() { s.isActive = true }

// End is for a lane that has caught up: it gets its deliveries directly.
func (s *Spill) End() { s.isActive, s.debt = false, 0 }
