package delivery

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/store"
)

// deliverParts runs a refused batch again: at once what the handlers had taken, and the rest in parts. What the refused
// call was about shares no transaction as a whole again.
func (r *runner) deliverParts(ctx context.Context, ds []*delivery, err error) {
	first, count := 0, len(ds)
	if r, ok := errors.AsType[*handler.RefusalError](err); ok {
		first, count = r.First, r.Count
	}
	r.ln.refused(ds, ds[first])
	if first > 0 {
		r.deliver(ctx, ds[:first])
	}
	r.inParts(ctx, ds[first:first+count], max(count/2, 1))
	r.inParts(ctx, ds[first+count:], len(ds))
}

// inParts runs deliveries in transactions of as many as are worth it, at most so many. When an event fails,
// the later ones of its aggregate are set aside with it.
func (r *runner) inParts(ctx context.Context, ds []*delivery, most int) {
	for ds = r.passable(ctx, ds, nil); len(ds) > 0; {
		if r.stops(ctx, ds) {
			return
		}
		part := ds[:min(r.together(ds), most)]
		r.deliver(ctx, part)
		ds = r.passable(ctx, ds[len(part):], part)
	}
}

// stops ends deliveries that have not begun, if the lane has been closed or paused meanwhile.
func (r *runner) stops(ctx context.Context, ds []*delivery) bool {
	if r.ln.isClosed() {
		r.out.giveBack(context.WithoutCancel(ctx), ds...) // the drain time may be over
		return true
	}
	if r.ln.isHalted() {
		r.sortOut(ctx, ds, blocked(ds))
		return true
	}
	return false
}

// passable sets aside, without a transaction, what has to wait for an unfinished event of its aggregate,
// and returns the rest. Only the aggregates of after are looked at; nil means all.
func (r *runner) passable(ctx context.Context, ds, after []*delivery) []*delivery {
	mates := make(map[store.Aggregate][]*delivery)
	var heads []*delivery // one answers for its whole aggregate
	for _, d := range ds {
		key := d.aggregate()
		if r.c.Config.Unordered || (after != nil && !slices.ContainsFunc(after, func(a *delivery) bool { return a.aggregate() == key })) {
			continue
		}
		if mates[key] = append(mates[key], d); len(mates[key]) == 1 {
			heads = append(heads, d)
		}
	}
	limited, cancel := context.WithTimeout(ctx, r.l.cfg.Lease) // a connection may be lost without a word
	defer cancel()
	answers, err := r.marks.ask(limited, r.l.regs.DB, heads)
	if err != nil {
		return ds // the transaction that runs them will meet the same error
	}
	aside := make(map[*delivery]store.Answer)
	for head, answer := range answers {
		if answer == store.Blocked {
			maps.Copy(aside, blocked(mates[head.aggregate()]))
		}
	}
	return r.sortOut(ctx, ds, aside)
}

// blocked is the answer for all of ds.
func blocked(ds []*delivery) map[*delivery]store.Answer {
	aside := make(map[*delivery]store.Answer, len(ds))
	for _, d := range ds {
		aside[d] = store.Blocked
	}
	return aside
}

// sortOut sets deliveries aside and returns the others, in order.
func (r *runner) sortOut(ctx context.Context, ds []*delivery, aside map[*delivery]store.Answer) []*delivery {
	var rest, off []*delivery
	for _, d := range ds {
		switch answer, ok := aside[d]; {
		case !ok:
			rest = append(rest, d)
		case answer != store.Blocked:
			r.out.setAside(ctx, d, answer)
		default:
			off = append(off, d)
		}
	}
	r.out.putOff(ctx, off)
	return rest
}
