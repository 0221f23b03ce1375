package delivery

import (
	"time"

	"golang.org/x/time/rate"
)

// pace is how fast a lane may go: by the rate that its consumer asked for, and by how well the
// database bears it.
type pace struct {
	limiter *rate.Limiter // nil: no limit
	again   bool          // a timer will look again when there are tokens
	eased   int           // workers less than the limit, because the database is under pressure
	good    int           // transactions without trouble since
	look    time.Duration // moving average of the time that the last look before COMMIT takes
	floor   time.Duration // about the least that it takes
	felt    int           // looks since the last worker was taken away
}

func newPace(perSecond float64) pace {
	if perSecond == 0 {
		return pace{}
	}
	burst := max(int(perSecond/10), 1) // a tenth of a second's worth
	return pace{limiter: rate.NewLimiter(rate.Limit(perSecond), burst)}
}

// tokens tells how many of n deliveries may start now. If there are fewer, again is called when
// one more may.
func (p *pace) tokens(n int, again func()) int {
	if p.limiter == nil {
		return n
	}
	have := int(p.limiter.Tokens())
	if have < 1 && !p.again {
		p.again = true
		missing := 1 - p.limiter.Tokens()
		time.AfterFunc(time.Duration(missing/float64(p.limiter.Limit())*float64(time.Second)), again)
	}
	return min(n, have)
}

func (p *pace) spend(n int) {
	if p.limiter != nil {
		p.limiter.ReserveN(time.Now(), n)
	}
}

// takes is how long n deliveries take at the rate that was asked for.
func (p *pace) takes(n int) time.Duration {
	if p.limiter == nil {
		return 0
	}
	return time.Duration(float64(n) / float64(p.limiter.Limit()) * float64(time.Second))
}

// adjust changes the pace of a lane.
func (ln *lane) adjust(change func(*pace)) {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	change(&ln.pace)
}

// A database that takes strained times as long as it could for the last look before COMMIT, which
// is always the same little work, has more workers than it can bear: each one more makes all of
// them slower, and with eight instances they are many. It is left alone below strainedLeast.
const (
	strained      = 10
	strainedLeast = 2 * time.Millisecond
	feelAfter     = 5 // looks between two workers taken away
)

// feel takes how long the last look took, and takes a worker away while the database is strained.
func (p *pace) feel(look time.Duration, limit int) {
	if p.floor == 0 {
		p.floor, p.look = look, look
	}
	p.floor = min(p.floor+p.floor/1024, look) // forgets slowly: the database may have moved
	p.look = (7*p.look + look) / 8
	if p.felt++; p.isStrained(1) && p.felt >= feelAfter {
		p.eased, p.good, p.felt = min(p.eased+1, limit-1), 0, 0
	}
}

func (p *pace) isStrained(part time.Duration) bool {
	return p.look > max(strained*p.floor, strainedLeast)/part
}

// easeAfter is how many transactions without trouble bring one worker back.
const easeAfter = 20

// ease halves the workers after a deadlock, a lock wait or a connection that could not be had.
func (p *pace) ease(limit int) { p.eased, p.good = min(p.eased+(limit-p.eased+1)/2, limit-1), 0 }

// bear brings workers back, one after the other, when the database is far from strained.
func (p *pace) bear() {
	if p.isStrained(2) {
		return
	}
	if p.good++; p.good >= easeAfter && p.eased > 0 {
		p.eased, p.good = p.eased-1, 0
	}
}
