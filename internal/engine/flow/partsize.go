package flow

// PartSize says how many deliveries of a consumer share a transaction while a handler refuses some of them. When a handler
// refuses one, the transaction is rolled back, and the others in it run again. So the more are refused, the fewer share one.
//
// A refusal halves the number. Each full transaction that succeeds adds one. If one of n is refused, the number comes to about
// the square root of 2n: there the runs that are repeated cost as much as the transactions that are saved.
//
// What never ran and what runs again are told apart, and never share a transaction: an event that is refused time after
// time, because it waits for something, says nothing about those that come in.
//
// The zero value allows any number.
type PartSize struct{ first, again limit }

// limit is how many may share a transaction, 0 for any number.
type limit struct{ most, succeeded int }

// enoughTogether is how many share a transaction when nothing is left to be gained: then the limit ends.
const enoughTogether = 16

// Shrink notes that a handler has refused one of n deliveries that shared a transaction, and whether those had never
// run before. One that was alone may be what a larger transaction was refused for: that has been noted already.
func (p *PartSize) Shrink(first bool, n int) {
	l := p.of(first)
	switch l.succeeded = 0; {
	case n > 1:
		l.most = min(n/2, enoughTogether)
	case l.most == 0:
		l.most = enoughTogether / 2
	}
}

// Grow notes that handlers have accepted n deliveries.
func (p *PartSize) Grow(first bool, n int) {
	l := p.of(first)
	if l.succeeded += n; l.most == 0 || l.succeeded < l.most {
		return
	}
	if l.most, l.succeeded = l.most+1, 0; l.most > enoughTogether {
		l.most = 0
	}
}

// Limit is how many of n deliveries that have never run, or that have, may share a transaction.
func (p *PartSize) Limit(first bool, n int) int {
	if l := p.of(first); l.most > 0 {
		return min(l.most, n)
	}
	return n
}

// Any tells whether there is a limit.
func (p *PartSize) Any() bool { return p.first.most > 0 || p.again.most > 0 }

func (p *PartSize) of(first bool) *limit {
	if first {
		return &p.first
	}
	return &p.again
}
