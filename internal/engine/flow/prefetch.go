package flow

import "time"

// Prefetch limits how many deliveries a lane leases before they start: as many as its workers start within about a
// second, by what the last batches took. What is leased and waits is what another instance could be working on, and
// what stays leased for a while if the process dies.
//
// The zero value knows nothing yet and allows a few.
type Prefetch struct {
	each time.Duration // moving average of the time that a worker takes for one delivery, all that goes with it included
}

const (
	prefetchFor   = time.Second
	firstPrefetch = 8 // before the first batch has ended: if each takes a second, this is two seconds of four workers
)

// Observe learns that a worker took so long for n deliveries. It believes sooner that they are slow than that they are quick.
func (p *Prefetch) Observe(n int, took time.Duration) {
	if n <= 0 {
		return
	}
	each := max(took/time.Duration(n), time.Microsecond)
	switch {
	case p.each == 0:
		p.each = each
	case each > p.each:
		p.each = (p.each + each) / 2
	default:
		p.each = (3*p.each + each) / 4
	}
}

// Knows reports whether a batch has ended.
func (p *Prefetch) Knows() bool { return p.each != 0 }

// Limit is how many deliveries may be leased that have not started, while so many workers are at work and so many
// others have nothing to do: those start what they get at once.
func (p *Prefetch) Limit(busy, idle int) int {
	if p.each == 0 {
		return firstPrefetch
	}
	return max(int(prefetchFor*time.Duration(busy+idle)/p.each), idle)
}
