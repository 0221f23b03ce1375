package flow

import "time"

// Settings are what a consumer asked for, and its part of the connections.
type Settings struct {
	Batch   int     // deliveries in one transaction
	Queue   int     // deliveries that wait in memory
	Workers int     // batches side by side
	Rate    float64 // deliveries a second; 0 is no limit
}

// Speed says how much a lane does at a time, and how fast. Its fields are the controllers, each told by the lane what it has
// seen; its methods are what several of them decide together.
type Speed struct {
	Settings Settings

	Workers  Workers
	Circuit  Circuit
	Parts    PartSize
	Pressure Pressure
	Bucket   Bucket
	Prefetch Prefetch
	Times    Times
	Batch    BatchSize
	Window   Window
	Spill    Spill
}

// NewSpeed is the speed of a lane that has done nothing yet.
func NewSpeed(s Settings) Speed {
	return Speed{Settings: s, Window: NewWindow(s.Queue), Bucket: NewBucket(s.Rate)}
}

const (
	// mostInParts is how many events a worker takes, to run them in parts.
	mostInParts = 100
	// probesLeased is how many waiting deliveries a half-open circuit has leased: it tries as many in a second.
	probesLeased = 4
)

// Observe notes how many deliveries are queued, and whether the consume log holds more.
func (s *Speed) Observe(queued int, more bool) { s.Batch.Observe(queued, s.Window.Limit(), more) }

// IsHalfOpen tells whether deliveries are tried one at a time.
func (s *Speed) IsHalfOpen(now time.Time) bool { return s.Circuit.State(now) == HalfOpen }

// BatchLimit is how many deliveries the next batch takes.
func (s *Speed) BatchLimit(now time.Time) int {
	if s.IsHalfOpen(now) {
		return 1
	}
	most := s.Settings.Batch
	if s.Parts.Any() {
		most = min(most, mostInParts)
	}
	return s.Batch.Limit(&s.Times, most)
}

// Wait is how long to wait until another batch of this size may begin; 0 means now. One where each runs alone anyway is worth
// another worker at once.
func (s *Speed) Wait(now time.Time, queued, size int) time.Duration {
	full := size
	if s.Parts.Any() {
		full = 1
	}
	return s.Workers.Wait(now, s.WorkerLimit(now), queued, full, s.Batch.Box())
}

// WorkerLimit is how many batches should run side by side, slow ones not counted.
func (s *Speed) WorkerLimit(now time.Time) int {
	if s.IsHalfOpen(now) {
		return 1
	}
	return s.Pressure.Limit(s.Settings.Workers)
}

// LeaseLimit is how many waiting deliveries to have leased that have not started, beside so many in the queue.
func (s *Speed) LeaseLimit(now time.Time, queued int) int {
	if s.IsHalfOpen(now) {
		return min(probesLeased, s.Settings.Queue)
	}
	workers, idle := s.WorkerLimit(now), 0
	if queued == 0 {
		idle = max(workers-s.Workers.Running(), 0)
	}
	most := s.Prefetch.Limit(max(workers-idle, 0), idle)
	if rate := s.Settings.Rate; rate > 0 {
		most = min(most, max(int(rate), 1))
	}
	return min(most, s.Settings.Queue)
}

// LeaseShare is how many waiting deliveries of one kind to have leased: each kind has a third. Of a kind that runs together it is at
// least a batch. Otherwise a slow machine, on which a transaction takes long, would lease less and less for each, until each
// delivery had one of its own. A slow handler has batches of one, and has none leased while its workers run.
func (s *Speed) LeaseShare(now time.Time, queued int, together bool) int {
	share := (s.LeaseLimit(now, queued) + 2) / 3
	if batch := s.BatchLimit(now); together && batch > 1 && s.Settings.Rate == 0 {
		share = max(share, min(batch, s.Settings.Queue))
	}
	return share
}

// QueueLimit is how many new events to have queued at most, however long others starve: what the workers start within a
// second, if that is more than the least window. If the process dies, the instance that takes them over has to assume that all of
// them had started.
func (s *Speed) QueueLimit(now time.Time) int {
	if !s.Prefetch.Knows() {
		return s.Window.Most()
	}
	return min(max(s.Prefetch.Limit(s.WorkerLimit(now), 0), narrowest), s.Window.Most())
}

// KindLimit is how much of its queue the lane keeps for events of each kind that is not NEW. It is what the window of NEW
// ones leaves.
func (s *Speed) KindLimit() int { return max(s.Settings.Queue/10, 1) }

// SpillLimit is how long others wait for the lane with so many in its queue before it spills; quickest is what the quickest of
// them takes for an event.
func (s *Speed) SpillLimit(queued int, quickest time.Duration) time.Duration {
	half, t := queued/2, &s.Times
	switch {
	case s.Bucket.Takes(half) > slowSpillAfter:
		return 0
	case t.usual > max(slowFactor*quickest, t.overhead) && time.Duration(half/s.Settings.Workers)*t.usual > slowSpillAfter:
		return slowSpillAfter
	}
	return max(spillAfter, spillBatches*t.batch)
}
