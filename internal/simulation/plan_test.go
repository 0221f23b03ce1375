package simulation

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// plan is what a seed decides about a life.
type plan struct {
	seed      uint64
	instances int
	deletes   bool // whether SENT events are deleted
	lease     time.Duration
	rates     rates
	saves     []save
	failures  map[string]failure // by consumer and event
	troubles  []trouble
	skips     bool // whether the operator skips some of what is DEAD; otherwise all is retried
	reaper    bool // whether there is one
	retention bool // whether it lasts until retention has removed everything
	releases  bool // whether the first instance is one of an older release
	extra
}

// extra is what only some lives have.
type extra struct {
	versions bool                  // whether the first instance does not know the newer schema version
	tenants  bool                  // whether two tenants have aggregates of the same ids
	replays  bool                  // whether the operator replays events
	delayed  map[int]time.Duration // for how long, by event
	kill     kill                  // the delivery that ends its process
	jumps    []jump                // of the database's clock

	newcomerAt time.Duration // when a consumer is registered that wants the past, 0 for never
	late       []trouble     // what befalls its instance then
}

// save is one transaction of a producer.
type save struct {
	at       time.Duration
	instance int
	rollback bool
	events   []int // aggregates
	key      int   // 0 for none; two transactions may save the same key
}

// failure is how a handler fails, the first so many times.
type failure struct {
	kind  string
	times int
}

// trouble befalls a whole instance.
type trouble struct {
	at       time.Duration
	instance int
	kind     string // cut, freeze or crash
	lasts    time.Duration
}

const (
	busyTime = 12 * time.Second // how long there are saves and faults
	quietBy  = 20 * time.Minute // when at the latest all must be done
)

var consumers = []string{"Ordered", "Passing", "Unordered", "Outside"}

// draw makes the plan of a seed. Few faults at a time, and each often: a life in which everything
// goes wrong gets nowhere near the interesting states.
func draw(seed uint64) plan {
	r := rand.New(rand.NewPCG(seed, 0))
	one := func(n int) bool { return r.IntN(n) == 0 }
	some := func(most int) int {
		if one(2) {
			return 0
		}
		return 1 + r.IntN(most)
	}
	p := plan{
		seed: seed, instances: 2 + r.IntN(2), deletes: one(3), lease: 2*time.Second + time.Duration(r.IntN(4))*time.Second,
		skips: one(3), reaper: one(3), retention: one(20),
	}
	p.rates = rates{
		lost: some(30), mute: some(30), busy: some(40), slow: some(40), delay: p.lease / 2 * time.Duration(1+r.IntN(6)),
		unknown: some(150), broken: some(100),
	}
	peaceful := one(5)
	if peaceful {
		p.rates = rates{}
	}
	number := 0
	for range 2 + r.IntN(4) {
		s := save{at: time.Duration(r.Int64N(int64(busyTime))), instance: r.IntN(p.instances), rollback: one(8)}
		if one(4) {
			s.key, s.events = 1+r.IntN(2), []int{3}
		} else {
			for range 1 + r.IntN(3) {
				s.events = append(s.events, r.IntN(3))
			}
		}
		p.saves = append(p.saves, s)
		number += len(s.events)
	}
	p.failures = make(map[string]failure)
	for range r.IntN(4) {
		kinds := []string{"error", "panic", "permanent", "later", "slow", "swallow"}
		p.failures[fmt.Sprintf("%s/%d", consumers[r.IntN(len(consumers))], r.IntN(number))] = failure{kinds[r.IntN(len(kinds))], 1 + r.IntN(3)}
	}
	for range r.IntN(3) {
		if peaceful {
			break
		}
		kinds := []string{"cut", "freeze", "crash"}
		tr := trouble{
			at: time.Duration(r.Int64N(int64(busyTime))), instance: r.IntN(p.instances), kind: kinds[r.IntN(len(kinds))],
			lasts: time.Duration(1+r.IntN(8)) * time.Second,
		}
		if !slices.ContainsFunc(p.troubles, func(other trouble) bool { return other.instance == tr.instance }) {
			p.troubles = append(p.troubles, tr)
		}
	}
	p.releases = one(3)
	p.add(rand.New(rand.NewPCG(seed, 1<<32)), number)
	return p
}

// add gives a life at most two of the things that only some lives have. They are drawn apart, so that the rest of a life
// stays what it was.
func (p *plan) add(r *rand.Rand, number int) {
	extras := []func(){
		func() { p.versions = true },
		p.withTenants,
		func() { p.replays, p.retention = true, p.retention || r.IntN(2) == 0 },
		func() { p.withDelays(r) },
		func() { p.withKill(r, number) },
		func() { p.withJumps(r) },
		func() { p.withNewcomer(r, number) },
	}
	chosen := r.Perm(len(extras))[:r.IntN(3)]
	slices.Sort(chosen) // a later one may take back what an earlier one has made
	for _, i := range chosen {
		extras[i]()
	}
}

// inOneAggregate makes all events without a key ones of a single aggregate.
func (p *plan) inOneAggregate() {
	for _, s := range p.saves {
		if s.key == 0 {
			clear(s.events)
		}
	}
}

// peaceful reports whether nothing befalls the database in this life.
func (p plan) peaceful() bool {
	for delivery, f := range p.failures { // a slow transaction holds up all other writers
		if f.kind == "slow" && !strings.HasPrefix(delivery, "Outside/") {
			return false
		}
	}
	r := p.rates
	return r.lost+r.mute+r.busy+r.slow+r.unknown+r.broken == 0 && len(p.troubles)+len(p.jumps) == 0 && !p.hasKill()
}
