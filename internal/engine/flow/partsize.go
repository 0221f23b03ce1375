package flow

// PartSize says how many deliveries of a consumer share a transaction while a handler refuses some of them. When a handler
// refuses one, the transaction is rolled back, and the others in it run again. So the more are refused, the fewer share one.
//
// A refusal halves the number. Each full transaction that succeeds adds one. If one of n is refused, the number comes to about
// the square root of 2n: there the runs that are repeated cost as much as the transactions that are saved.
//
// Each [Group] has a number of its own. While it has one, it shares transactions with no other: an event that is refused time
// after time, because it waits for something, says nothing about those that do not.
//
// The zero value allows any number.
type PartSize struct{ limits map[Group]limit }

// Group are the deliveries that are refused for like reasons: of one event type, those that never ran or those that run again.
type Group struct {
	Type  string
	Again bool
}

// limit is how many may share a transaction.
type limit struct{ most, succeeded int }

// enoughTogether is how many share a transaction when nothing is left to be gained: then the limit ends.
const enoughTogether = 16

// Shrink notes that a handler has refused one of n deliveries of a group that shared a transaction. One that was alone may be what
// a larger transaction was refused for: that has been noted already.
func (p *PartSize) Shrink(g Group, n int) {
	l, isLimited := p.limits[g]
	switch l.succeeded = 0; {
	case n > 1:
		l.most = min(n/2, enoughTogether)
	case !isLimited:
		l.most = enoughTogether / 2
	}
	if p.limits == nil {
		p.limits = make(map[Group]limit)
	}
	p.limits[g] = l
}

// Grow notes that handlers have accepted n deliveries of a group.
func (p *PartSize) Grow(g Group, n int) {
	l, isLimited := p.limits[g]
	if !isLimited {
		return
	}
	if l.succeeded += n; l.succeeded >= l.most {
		l = limit{most: l.most + 1}
	}
	if p.limits[g] = l; l.most > enoughTogether {
		delete(p.limits, g)
	}
}

// Limit is how many of n deliveries of a group may share a transaction.
func (p *PartSize) Limit(g Group, n int) int {
	if l, isLimited := p.limits[g]; isLimited {
		return min(l.most, n)
	}
	return n
}

// Joins tells whether deliveries of two groups may share a transaction.
func (p *PartSize) Joins(a, b Group) bool {
	return len(p.limits) == 0 || a == b || (!p.isLimited(a) && !p.isLimited(b))
}

// Any tells whether there is a limit.
func (p *PartSize) Any() bool { return len(p.limits) > 0 }

func (p *PartSize) isLimited(g Group) bool {
	_, is := p.limits[g]
	return is
}
