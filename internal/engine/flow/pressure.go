package flow

import "time"

// Pressure says how many workers fewer a consumer has, because the database is under pressure: it was too slow for the last look
// before COMMIT, or a transaction was spoilt.
type Pressure struct {
	fewer int           // workers less than the limit
	good  int           // transactions without trouble since
	look  time.Duration // moving average of the time that the last look before COMMIT takes
	floor time.Duration // about the least that it takes
	looks int           // since the last worker was taken away
}

// Fewer is how many workers less than its limit the consumer has.
func (p *Pressure) Fewer() int { return p.fewer }

// A database that takes strained times as long as it could for the last look before COMMIT, which
// is always the same little work, has more workers than it can bear: each one more makes all of
// them slower, and with eight instances they are many. It is left alone below strainedLeast.
const (
	strained       = 10
	strainedLeast  = 2 * time.Millisecond
	observedBefore = 5 // looks between two workers taken away
)

// Observe takes how long the last look took, and takes a worker away while the database is strained.
func (p *Pressure) Observe(look time.Duration, limit int) {
	if p.floor == 0 {
		p.floor, p.look = look, look
	}
	p.floor = min(p.floor+p.floor/1024, look) // forgets slowly: the database may have moved
	p.look = (7*p.look + look) / 8
	if p.looks++; p.isStrained(1) && p.looks >= observedBefore {
		p.fewer, p.good, p.looks = min(p.fewer+1, limit-1), 0, 0
	}
}

func (p *Pressure) isStrained(part time.Duration) bool {
	return p.look > max(strained*p.floor, strainedLeast)/part
}

// recoverAfter is how many transactions without trouble bring one worker back.
const recoverAfter = 20

// Halve halves the workers after a deadlock, a lock wait or a connection that could not be had.
func (p *Pressure) Halve(limit int) { p.fewer, p.good = min(p.fewer+(limit-p.fewer+1)/2, limit-1), 0 }

// Recover brings workers back, one after the other, when the database is far from strained.
func (p *Pressure) Recover() {
	if p.isStrained(2) {
		return
	}
	if p.good++; p.good >= recoverAfter && p.fewer > 0 {
		p.fewer, p.good = p.fewer-1, 0
	}
}
