package simulation

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
)

// A consumer is registered while events come, and wants those from before it too: each once, in the order of its aggregate.

const newcomer = "Newcomer"

// beforePage is part of a statement that the engine sends before each page of a backfill.
const beforePage = "(SELECT MAX(reached) FROM bc_bulk_operation"

// withNewcomer has an instance with a further consumer start in the middle, and something befall it. Events of one aggregate are saved
// while its backfill is slow. Nothing is removed meanwhile: that consumer gets all there is.
func (p *plan) withNewcomer(r *rand.Rand, number int) {
	p.newcomerAt = time.Second + time.Duration(r.Int64N(int64(busyTime)))
	p.deletes, p.retention = false, false
	p.saves = append(p.saves, save{at: p.newcomerAt + time.Duration(r.Int64N(int64(slowly))), events: make([]int, 2)})
	if r.IntN(2) == 0 {
		p.inOneAggregate()
	}
	if r.IntN(2) == 0 && !p.hasKill() { // there only the delivery that kills may be DEAD
		p.failures[fmt.Sprintf("%s/%d", newcomer, r.IntN(number))] = failure{"error", 1 + r.IntN(3)}
	}
	if len(p.troubles) > 0 {
		p.late = []trouble{{
			at: time.Duration(r.Int64N(int64(3 * time.Second))), instance: p.instances, kind: p.troubles[0].kind,
			lasts: time.Duration(1+r.IntN(8)) * time.Second,
		}}
	}
}

// hasNewcomer tells whether the instance in a place is the one with the further consumer.
func (p plan) hasNewcomer(place int) bool { return p.newcomerAt > 0 && place == p.instances }

// consumers are all that there are in the end.
func (p plan) consumers() []string {
	if p.newcomerAt > 0 {
		return append([]string{newcomer}, consumers...)
	}
	return consumers
}

// join starts the instance with the newcomer when it is time.
func (l *life) join() {
	if l.plan.newcomerAt == 0 {
		return
	}
	l.running.Go(func() {
		wait(l.ctx, l.plan.newcomerAt)
		l.start(l.plan.instances, "late")
		for _, tr := range l.plan.late {
			l.suffer(tr)
		}
	})
}

// hasJoined tells whether the newcomer is registered, if there is to be one.
func (l *life) hasJoined(db *bun.DB) bool {
	return l.plan.newcomerAt == 0 || l.count(db, "SELECT COUNT(*) FROM bc_consumer WHERE name = ?", newcomer) > 0
}

// slows is what a slow statement of an instance holds.
func (p plan) slows(place int) string {
	if p.hasNewcomer(place) {
		return beforePage
	}
	return ""
}

// newcomer is the further consumer.
func (l *life) newcomer(b *bus.Bus) *bus.Consumer {
	return b.Consumer(newcomer, bus.ConsumerConfig{StartFrom: bus.Beginning(), MaxAttempts: l.plan.attempts()})
}
