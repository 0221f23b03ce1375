package model

// The crash loop is a model of its own: one process, one consumer, deliveries of different
// aggregates, the first of which kills the process whenever its handler runs. Only that one may end
// DEAD, and it must.

const (
	deliveries  = 3
	mostCrashes = 1 // without a handler's help: fewer than maxAttempts
	maxAttempts = 2
)

// The states of a delivery in the crash loop.
const (
	clWaiting int8 = iota
	clLeased
	clRunning
	clSuccess
	clDead
)

// attempt is how a delivery stands.
type attempt struct {
	status, attempts int8
	suspect          bool // a process that died may have started it
}

// crashState is everything.
type crashState struct {
	list    [deliveries]attempt
	crashes int8
}

// crashLoop is the model with its rules.
type crashLoop struct {
	rules Rules
	next  []step[crashState]
}

// ExploreCrashLoop visits all states of the crash loop.
func ExploreCrashLoop(rules Rules) (Explored, error) {
	return explore(&crashLoop{rules: rules}, 1_000_000, nil)
}

func (*crashLoop) start() crashState { return crashState{} }

// steps lists all ways to go on from s.
func (c *crashLoop) steps(s crashState) []step[crashState] {
	c.next = c.next[:0]
	for d := range s.list {
		c.claim(s, d)
		c.run(s, d, false)
		c.run(s, d, true)
	}
	c.end(s)
	if s.crashes < mostCrashes {
		s.crashes++
		c.crash(s, true, "the process is killed")
	}
	return c.next
}

func (c *crashLoop) add(to crashState, fault bool, format string, args ...any) {
	c.next = append(c.next, step[crashState]{to, fault, format, args})
}

// claim leases a delivery, or finds that it has no attempt left.
func (c *crashLoop) claim(s crashState, d int) {
	a := &s.list[d]
	if a.status != clWaiting {
		return
	}
	if a.attempts >= maxAttempts {
		a.status = clDead
		c.add(s, false, "delivery %d is DEAD", d)
		return
	}
	if a.status = clLeased; !c.rules.CountedByOutcome {
		a.attempts++
	}
	c.add(s, false, "delivery %d is claimed", d)
}

// run calls the handler of a delivery, in the transaction that is open already or in one of its own.
func (c *crashLoop) run(s crashState, d int, joins bool) {
	a := &s.list[d]
	running, withSuspect := s.running()
	alone := c.rules.RunsAlone && (a.suspect || withSuspect)
	if a.status != clLeased || joins != running || (joins && alone) {
		return
	}
	if a.status = clRunning; a.suspect && c.rules.CountedFirst && c.rules.CountedByOutcome {
		a.attempts++ // by a commit of its own
	}
	if joins {
		c.add(s, false, "delivery %d runs in the same batch", d)
		return
	}
	c.add(s, false, "delivery %d runs", d)
}

// running tells whether a transaction is open, and whether a suspect is in it.
func (s *crashState) running() (running, withSuspect bool) {
	for _, a := range s.list {
		running = running || a.status == clRunning
		withSuspect = withSuspect || (a.status == clRunning && a.suspect)
	}
	return running, withSuspect
}

// end ends the transaction: by its commit, or, with the first delivery in it, by the process's death.
func (c *crashLoop) end(s crashState) {
	if running, _ := s.running(); !running {
		return
	}
	if s.list[0].status == clRunning {
		c.crash(s, false, "delivery 0 kills the process")
		return
	}
	for d := range s.list {
		if a := &s.list[d]; a.status == clRunning {
			a.status, a.suspect = clSuccess, false
		}
	}
	c.add(s, false, "the batch commits")
}

// crash ends the process: its leases run out.
func (c *crashLoop) crash(s crashState, fault bool, why string) {
	for d := range s.list {
		switch a := &s.list[d]; a.status {
		case clRunning:
			a.status, a.suspect = clWaiting, true
		case clLeased:
			a.status = clWaiting
		}
	}
	c.add(s, fault, "%s", why)
}

// broken names the promise that a state breaks.
func (c *crashLoop) broken(s *crashState) string {
	for d, a := range s.list {
		if d > 0 && a.status == clDead {
			return "a delivery is DEAD that does not kill"
		}
	}
	return ""
}

// left names what is not finished.
func (c *crashLoop) left(s *crashState) string {
	for d, a := range s.list {
		if a.status != clSuccess && a.status != clDead {
			return "nobody will ever finish a delivery"
		} else if d == 0 && a.status == clSuccess {
			return "the delivery that kills has not ended DEAD"
		}
	}
	return ""
}
