package simulation

import (
	"math/rand/v2"
	"time"
)

// The database's clock leaps a day ahead and stays there, or an hour back and is set right after some seconds. (That of a
// process cannot leap in a bubble. The engine compares the two, so for it a process's clock that leaps back is a
// database's that leaps ahead.)

// jump is a leap of the database's clock.
type jump struct {
	at, by time.Duration
}

func (p *plan) withJumps(r *rand.Rand) {
	at := time.Duration(r.Int64N(int64(busyTime)))
	if r.IntN(2) == 0 {
		p.jumps = []jump{{at, 24 * time.Hour}}
	} else {
		p.jumps = []jump{{at, -time.Hour}, {at + time.Second + time.Duration(r.Int64N(int64(10*time.Second))), time.Hour}}
	}
}

// leapsBack reports whether times of the database do not tell what came first.
func (p plan) leapsBack() bool { return len(p.jumps) > 1 }

// leap lets the database's clock leap.
func (l *life) leap(j jump) {
	wait(l.ctx, j.at)
	l.store.ahead.Add(int64(j.by))
	l.note("the database's clock leaps by %v", j.by)
}
