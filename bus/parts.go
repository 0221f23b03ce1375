package bus

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/store"
)

// deliverParts runs a refused batch again: at once what the handlers had taken, one by one what the
// refused call was about, and the rest in parts of which none is longer than what had gone well,
// lest many events at fault make each part run many times.
func (ln *lane) deliverParts(ctx context.Context, ds []*delivery, err error) {
	first, count := 0, len(ds)
	if r, ok := errors.AsType[*refusal](err); ok {
		first, count = r.first, r.count
	}
	if first == 0 {
		ln.oneByOne(ctx, ds)
		return
	}
	ln.deliver(ctx, ds[:first])
	ln.oneByOne(ctx, ds[first:first+count])
	for part := range slices.Chunk(ds[first+count:], first) {
		ln.deliver(ctx, part)
	}
}

// oneByOne runs deliveries each in a transaction of its own, until as many have succeeded as make up
// for a failure. An event that fails takes those behind it along: they are set aside together.
func (ln *lane) oneByOne(ctx context.Context, ds []*delivery) {
	for ds = ln.passable(ctx, ds, nil); len(ds) > 0; {
		if ln.stops(ctx, ds) {
			return
		}
		first := ds[0]
		ln.deliver(ctx, ds[:1])
		ds = ln.passable(ctx, ds[1:], first)
		if len(ds) > 0 && !ln.isWary() {
			ln.deliver(ctx, ds)
			return
		}
	}
}

// stops ends deliveries that have not begun, if the lane has been closed or paused meanwhile.
func (ln *lane) stops(ctx context.Context, ds []*delivery) bool {
	if ln.isClosed() {
		for _, d := range ds {
			ln.giveBack(ctx, d)
		}
		return true
	}
	if ln.isHalted() {
		ln.sortOut(ctx, ds, blocked(ds))
		return true
	}
	return false
}

// passable sets aside, without a transaction, what has to wait for an unfinished event of its aggregate,
// and returns the rest. Only the aggregate of after is looked at; nil means all.
func (ln *lane) passable(ctx context.Context, ds []*delivery, after *delivery) []*delivery {
	mates := make(map[store.Aggregate][]*delivery)
	var heads []*delivery // one answers for its whole aggregate
	for _, d := range ds {
		key := d.aggregate()
		if ln.c.cfg.Unordered || (after != nil && after.aggregate() != key) {
			continue
		}
		if mates[key] = append(mates[key], d); len(mates[key]) == 1 && ln.mayWait(d) {
			heads = append(heads, d)
		}
	}
	limited, cancel := context.WithTimeout(ctx, ln.l.host.Lease) // a connection may be lost without a word
	defer cancel()
	answers, err := ln.ask(limited, ln.l.bus.db, heads)
	if err != nil {
		return ds // whoever runs them meets it again
	}
	aside := make(map[*delivery]consumelog.Answer)
	for head, answer := range answers {
		if answer == consumelog.Blocked {
			maps.Copy(aside, blocked(mates[head.aggregate()]))
		}
	}
	return ln.sortOut(ctx, ds, aside)
}

// blocked is the answer for all of ds.
func blocked(ds []*delivery) map[*delivery]consumelog.Answer {
	aside := make(map[*delivery]consumelog.Answer, len(ds))
	for _, d := range ds {
		aside[d] = consumelog.Blocked
	}
	return aside
}

// sortOut sets deliveries aside and returns the others, in order.
func (ln *lane) sortOut(ctx context.Context, ds []*delivery, aside map[*delivery]consumelog.Answer) []*delivery {
	var rest, direct, leased []*delivery
	for _, d := range ds {
		switch answer, ok := aside[d]; {
		case !ok:
			rest = append(rest, d)
		case answer != consumelog.Blocked:
			ln.setAside(ctx, d, answer)
		case d.direct():
			direct = append(direct, d)
		default:
			leased = append(leased, d)
		}
	}
	if len(direct) > 0 {
		ln.deferDirect(ctx, ln.untilNextLook(), direct...)
	}
	if len(leased) > 0 {
		ln.putBackAll(ctx, leased, ln.untilNextLook())
	}
	return rest
}
