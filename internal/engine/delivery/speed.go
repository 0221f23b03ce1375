package delivery

import (
	"cmp"
	"time"

	"github.com/bluecone-go/bluecone/internal/engine/flow"
	"github.com/bluecone-go/bluecone/internal/handler"
)

// speed says how much a lane does at a time, and how fast. Its lane's mu guards it.
type speed struct {
	cfg   handler.Config
	limit int // batches side by side

	workers  flow.Workers
	circuit  flow.Circuit
	parts    flow.PartSize
	pressure flow.Pressure
	bucket   bucket
	prefetch flow.Prefetch
	times    times
	spill    spill
	window   int  // how many deliveries to have queued, for none to wait longer than sojourn
	backlog  bool // the queue has been half full, and not empty since
}

func newSpeed(cfg handler.Config, limit int) speed {
	return speed{cfg: cfg, limit: limit, window: min(widest(cfg), 2*narrowest), bucket: newBucket(cfg.Rate)}
}

// times are moving averages of what batches take.
type times struct {
	perEvent time.Duration // a handler for one event, 0 before the first
	usual    time.Duration // the same, but slow calls change it only when there are many
	overhead time.Duration // a transaction beside its handlers
	turn     time.Duration // a batch, with all that goes on around its handlers
}

// observeCall learns how long a handler took for each of its events: that it is slow, at once.
func (t *times) observeCall(each time.Duration) {
	each = max(each, time.Microsecond)
	usual := cmp.Or(t.usual, each)
	t.usual = (3*usual + min(each, 2*usual)) / 4
	switch {
	case t.perEvent == 0:
		t.perEvent = each
	case each > t.perEvent:
		t.perEvent = (t.perEvent + 3*each) / 4
	default:
		t.perEvent = (3*t.perEvent + each) / 4
	}
}

// observeOverhead learns how long a transaction takes beside its handlers: that it is less than it was, soon. The
// first ones of a connection take very long.
func (t *times) observeOverhead(took time.Duration) {
	if took < t.overhead {
		t.overhead = (t.overhead + took) / 2
	} else {
		t.overhead = (7*t.overhead + took) / 8
	}
}

func (t *times) observeTurn(took time.Duration) { t.turn = (3*cmp.Or(t.turn, took) + took) / 4 }

const (
	batchTimeBox   = 20 * time.Millisecond
	backlogTimeBox = 3 * batchTimeBox
	worthOverhead  = 8   // how many times as long as a transaction's overhead its handlers may take
	firstBatch     = 4   // for a handler of which nobody knows yet how long it takes: a slow one is known soon
	mostInParts    = 100 // how many events a worker takes, to run them in parts
)

// batchSize is how many events fit into the time box.
//
// While a backlog is worked off, from when it filled half the window until the queue is empty, the
// box is longer: what is new waits behind the queue anyway, and every transaction saved is work that
// the database does not do. The box is also a multiple of what a transaction takes beside its handlers,
// so that a machine that is slow under its load does not get smaller and smaller batches, and with them
// even more to do.
func (s *speed) batchSize() int {
	box, most := s.box(), s.cfg.Batch
	switch {
	case s.isHalfOpen():
		return 1
	case s.times.perEvent == 0:
		return min(most, firstBatch)
	case s.parts.Any():
		most = min(most, mostInParts)
	}
	if s.backlog {
		box = max(box, worthOverhead*s.times.overhead)
	}
	return max(1, min(int(box/s.times.perEvent), most))
}

// notice tells a backlog by the queue, and by whether more waits in the consume log: of that the queue never holds more than a
// second's work.
func (s *speed) notice(queued int, more bool) {
	s.backlog = queued > 0 && (s.backlog || 2*queued > s.window || more)
}

// box is the time that handlers of a batch should take. While a backlog is worked off it is longer.
func (s *speed) box() time.Duration {
	if s.backlog {
		return backlogTimeBox
	}
	return batchTimeBox
}

// wait is how long to wait until another batch of this size may begin; 0 means now. One where each runs alone anyway is worth
// another worker at once.
func (s *speed) wait(now time.Time, queued, size int) time.Duration {
	full := size
	if s.parts.Any() {
		full = 1
	}
	return s.workers.Wait(now, s.mostWorkers(), queued, full, s.box())
}

// mostWorkers is how many batches should run side by side, slow ones not counted.
func (s *speed) mostWorkers() int {
	if s.isHalfOpen() {
		return 1
	}
	return s.limit - s.pressure.Fewer()
}

// isHalfOpen tells whether deliveries are tried one at a time.
func (s *speed) isHalfOpen() bool { return s.circuit.State(time.Now()) == flow.HalfOpen }

// probesInHand is how many waiting deliveries a half-open circuit has in hand: it tries as many in a second.
const probesInHand = 4

// depth is how many waiting deliveries to have leased that have not started, beside so many in the queue.
func (s *speed) depth(queued int) int {
	if s.isHalfOpen() {
		return min(probesInHand, s.cfg.Queue)
	}
	idle := 0
	if queued == 0 {
		idle = max(s.mostWorkers()-s.workers.Running(), 0)
	}
	most := s.prefetch.Limit(max(s.mostWorkers()-idle, 0), idle)
	if rate := s.cfg.Rate; rate > 0 {
		most = min(most, max(int(rate), 1))
	}
	return min(most, s.cfg.Queue)
}

// sojourn is how long a delivery should wait in the queue at most: what is claimed and waits here
// is what another instance could be working on. (The idea is CoDel's.)
const sojourn = 200 * time.Millisecond

// widest leaves a fifth of the queue to events that come out of turn.
func widest(c handler.Config) int { return c.Queue - c.Queue/5 }

// narrowest is the least that a window becomes: less would make batches that are not worth their
// transactions. A lane begins with twice as much: the first claims of an instance that joins others
// must not take more than it can work off.
const narrowest = 100

// adapt narrows the window when new deliveries wait too long, and widens it when they do not.
func (s *speed) adapt(batch []*delivery) {
	if batch[0].queued.IsZero() {
		return
	}
	if time.Since(batch[0].queued) > sojourn {
		s.window = max(s.window*3/4, min(widest(s.cfg), narrowest))
	} else {
		s.window = min(s.window+len(batch)/2+1, widest(s.cfg))
	}
}

// mostDirect is how many new events to have queued at most, however long others starve: what the workers start within a
// second, if that is more than the least window. If the process dies, whoever takes them over has to take all of them for
// started.
func (s *speed) mostDirect() int {
	if !s.prefetch.Knows() {
		return widest(s.cfg)
	}
	return min(max(s.prefetch.Limit(s.mostWorkers(), 0), narrowest), widest(s.cfg))
}

// share is how much of its queue the lane keeps for events of each kind that is not NEW. It is what the window of NEW
// ones leaves.
func (s *speed) share() int { return max(s.cfg.Queue/10, 1) }

// spill tells when a full lane has kept others waiting for too long, so that its deliveries go to the consume log.
type spill struct {
	active bool          // they do, until the lane has caught up
	looked time.Time     // when room was last asked for
	debt   time.Duration // how long others were starved because this one was full, less the time they were not
}

const (
	// spillAfter is how long, all in all, lanes that have run empty wait for one that is full, and spillTurns
	// is for how many of its batches at least: many instances on one machine make every batch slow, and
	// the way through the consume log would make all of them slower.
	spillAfter = time.Second
	spillTurns = 20
	// slowSpillAfter is how long a lane must take for half its queue for others to wait no longer than that, if
	// a call of its handler takes many times as long as one of theirs, and longer than the rest of its
	// transaction: a machine under load makes all of that slow, and some of them slower for a moment.
	slowSpillAfter = time.Second / 10
	slowFactor     = 8
)

// observe notes whether others have been starved since the last time because this lane is full.
func (s *spill) observe(now time.Time, isHoldingUp bool, limit time.Duration) {
	passed := min(now.Sub(s.looked), spillAfter/3)
	s.looked = now
	if !isHoldingUp {
		s.debt = max(s.debt-passed, 0)
		return
	}
	s.debt += passed
	s.active = s.active || s.debt > limit
}

// spillLimit is how long others wait for the lane with so many in its queue; quickest is what the quickest of them takes for an event.
func (s *speed) spillLimit(queued int, quickest time.Duration) time.Duration {
	half := queued / 2
	switch {
	case s.bucket.takes(half) > slowSpillAfter:
		return 0
	case s.times.usual > max(slowFactor*quickest, s.times.overhead) && time.Duration(half/s.limit)*s.times.usual > slowSpillAfter:
		return slowSpillAfter
	}
	return max(spillAfter, spillTurns*s.times.turn)
}
