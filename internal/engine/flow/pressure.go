package flow

import "time"

// Pressure says how many workers fewer a consumer has, because the database is under pressure: it was too slow for the last look
// before COMMIT.
type Pressure struct {
	fewer int           // workers than the consumer may have
	good  int           // transactions that have committed since
	look  time.Duration // moving average of the time that the last look before COMMIT takes
	floor time.Duration // about the least that it takes
	looks int           // since the last worker was taken away
}

// Limit is how many of its workers the consumer has.
func (p *Pressure) Limit(workers int) int { return workers - p.fewer }

// A database that takes strained times as long as it could for the last look before COMMIT, which
// is always the same little work, has too many workers: each one more makes all of
// them slower, and with eight instances they are many. Below strainedLeast it is never strained.
const (
	strained       = 10
	strainedLeast  = 2 * time.Millisecond
	observedBefore = 5 // looks between two workers taken away
)

// Observe learns how long the last look took, and takes one of the workers away while the database is strained.
func (p *Pressure) Observe(look time.Duration, workers int) {
	if p.floor == 0 {
		p.floor, p.look = look, look
	}
	p.floor = min(p.floor+p.floor/1024, look) // forgets slowly: the database may have moved
	p.look = (7*p.look + look) / 8
	if p.looks++; p.isStrained(1) && p.looks >= observedBefore {
		p.fewer, p.good, p.looks = min(p.fewer+1, workers-1), 0, 0
	}
}

func (p *Pressure) isStrained(part time.Duration) bool {
	return p.look > max(strained*p.floor, strainedLeast)/part
}

// recoverAfter is how many transactions that commit bring one worker back.
const recoverAfter = 20

// Grow notes a transaction that has committed. Several of them bring a worker back, when the database is far from strained.
func (p *Pressure) Grow() {
	if p.isStrained(2) {
		return
	}
	if p.good++; p.good >= recoverAfter && p.fewer > 0 {
		p.fewer, p.good = p.fewer-1, 0
	}
}
