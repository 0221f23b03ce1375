package remote

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/engine/claim"
	"github.com/bluecone-go/bluecone/internal/eventrow"
	"github.com/bluecone-go/bluecone/internal/store"
)

// announceEvery is how often the registry is told that a consumer still asks for deliveries.
const announceEvery = 30 * time.Second

// Delivery is an event that a consumer has been given.
type Delivery struct {
	Event   *eventrow.Row
	Lease   Lease
	Until   time.Time // end of the lease, by the database's clock
	Attempt int       // number of this run
}

// Register announces a consumer and the event types that it takes from now on, instead of those that it took before: all of that,
// or nothing. What it takes is asked of the database, for another instance may have been told something else meanwhile.
func (r *Deliveries) Register(ctx context.Context, consumer string, types []string) error {
	types = slices.Compact(slices.Sorted(slices.Values(types)))
	known, err := r.rows.Types(ctx, r.db, consumer)
	if err != nil {
		return fmt.Errorf("register consumer %s: %w", consumer, err)
	}
	slices.Sort(known)
	isNew, now := !slices.Equal(known, types), time.Now()
	r.mu.Lock()
	last := r.announced[consumer]
	r.mu.Unlock()
	if !isNew && now.Sub(last) < announceEvery {
		return nil
	}
	if err := r.inTx(ctx, func(ctx context.Context, tx bun.Tx) error { return r.announce(ctx, tx, consumer, types, isNew) }); err != nil {
		return fmt.Errorf("register consumer %s: %w", consumer, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.announced[consumer] = now
	if isNew {
		r.late[consumer] = late{types: types, next: now.Add(unparkEvery), left: unparks}
	}
	return nil
}

func (r *Deliveries) announce(ctx context.Context, tx bun.Tx, consumer string, types []string, isNew bool) error {
	all := []store.Announcement{{Key: consumer, Name: consumer, Types: types}}
	if err := r.registry.AnnounceConsumers(ctx, tx, all); err != nil {
		return err
	}
	if err := r.registry.AnnounceTypes(ctx, tx, all); err != nil {
		return err
	}
	if err := r.rows.KeepTypes(ctx, tx, consumer, types); err != nil || !isNew {
		return err
	}
	return r.rows.Unpark(ctx, tx, types) // events that were parked because they had no consumer need not wait for their time
}

const (
	unparkEvery = 500 * time.Millisecond
	unparks     = 10
)

// late is a consumer for which events may still be parked: by a publisher that had read the registry before it was announced.
type late struct {
	types []string
	next  time.Time
	left  int // so many more times
}

// UnparkLate makes events due that were parked just after the registration of their consumer, for seconds after it. Call it often.
func (r *Deliveries) UnparkLate(ctx context.Context) error {
	var types []string
	r.mu.Lock()
	for consumer, l := range r.late {
		if time.Now().Before(l.next) {
			continue
		}
		types = append(types, l.types...)
		l.next, l.left = time.Now().Add(unparkEvery), l.left-1
		if r.late[consumer] = l; l.left == 0 {
			delete(r.late, consumer)
		}
	}
	r.mu.Unlock()
	if len(types) == 0 {
		return nil
	}
	return r.rows.Unpark(ctx, r.db, types)
}

// Fetch leases up to limit deliveries of a consumer that are due, of these event types: in the order of the outbox, and one of
// each aggregate, so that the next one is handed out when it has ended. What a program that has died may have started comes first, and
// is counted before: see takeLeft. A consumer that is paused gets nothing.
func (r *Deliveries) Fetch(ctx context.Context, consumer string, types []string, limit, maxBytes int) ([]Delivery, error) {
	if paused, err := r.registry.IsPaused(ctx, r.db, consumer); err != nil || paused {
		return nil, err
	}
	expired, now, err := r.rows.HasExpired(ctx, r.db, consumer, types)
	if err != nil {
		return nil, err
	}
	owner := newOwner()
	g := gate(consumer, owner, types)
	var chosen []store.Leased
	if expired {
		if chosen, err = r.takeLeft(ctx, g, limit); err != nil {
			return nil, err
		}
	}
	if len(chosen) == 0 {
		if chosen, err = r.takeWaiting(ctx, g, limit); err != nil || len(chosen) == 0 {
			return nil, err
		}
	}
	return r.load(ctx, owner, chosen, r.until(now), maxBytes)
}

// takeWaiting leases what waits and is due, and notes that it starts.
func (r *Deliveries) takeWaiting(ctx context.Context, g store.Gate, limit int) ([]store.Leased, error) {
	leased, err := r.claim(ctx, g, limit)
	if err != nil {
		return nil, err
	}
	chosen, back := choose(leased, limit)
	var plain, suspects []store.Leased
	for _, d := range chosen {
		if d.Suspect {
			suspects = append(suspects, d)
		} else {
			plain = append(plain, d)
		}
	}
	if len(suspects) > 0 { // they were put off, or a publisher has left them
		var later []store.Leased
		if suspects, later, err = r.startSuspects(ctx, g, suspects); err != nil {
			return nil, err
		}
		back = append(back, later...)
	}
	if err := r.putBack(ctx, g.Owner, back); err != nil {
		return nil, err
	}
	if len(plain) > 0 {
		if err := r.log.Start(ctx, g.Owner, plain); err != nil {
			return nil, err
		}
	}
	return append(plain, suspects...), nil
}

// claim leases what is due: a third of what has failed, and of what has never run as much as is left.
func (r *Deliveries) claim(ctx context.Context, g store.Gate, limit int) ([]store.Leased, error) {
	third := max(limit/3, 1)
	q := claim.LogQuery{
		Gate: g, Types: g.Types, Lease: r.cfg.Lease, OneEach: true, Limits: claim.Limits{Failed: third, Pending: max(limit-third, 1)},
	}
	first, err := claim.FromLog(ctx, r.db, r.log, q)
	if err != nil || len(first.Deliveries) >= limit || first.Found.Pending < q.Limits.Pending {
		return first.Deliveries, err
	}
	q.Limits = claim.Limits{Pending: limit - len(first.Deliveries)}
	second, err := claim.FromLog(ctx, r.db, r.log, q)
	return append(first.Deliveries, second.Deliveries...), err
}

// choose says which of the leased deliveries to hand out, in the order of the outbox, and which not: the first of each aggregate.
func choose(leased []store.Leased, limit int) (chosen, back []store.Leased) {
	slices.SortFunc(leased, func(a, b store.Leased) int { return cmp.Compare(a.OutboxID, b.OutboxID) })
	taken := make(map[store.Aggregate]bool, len(leased))
	for _, d := range leased {
		if taken[d.Aggregate()] {
			back = append(back, d)
			continue
		}
		taken[d.Aggregate()] = true
		chosen = append(chosen, d)
	}
	n := min(limit, len(chosen))
	return chosen[:n], append(back, chosen[n:]...)
}

// untilAsked is how long a delivery waits that was leased and not handed out. The end of what is before it wakes it.
const untilAsked = time.Second

func (r *roomsOf) putBack(ctx context.Context, owner string, ds []store.Leased) error {
	if len(ds) == 0 {
		return nil
	}
	return r.log.PutBack(ctx, owner, untilAsked, ds...)
}

// load reads the events of what was chosen. What does not fit is put back, and what has no event any more ends DEAD.
func (r *Deliveries) load(ctx context.Context, owner string, chosen []store.Leased, until time.Time, maxBytes int) ([]Delivery, error) {
	ids := make([]string, len(chosen))
	for i, d := range chosen {
		ids[i] = d.EventID
	}
	total := 0
	rows, more, err := store.EventsByID(ctx, r.db, r.d, ids, func(bytes int) bool {
		total += bytes
		return total == bytes || total <= maxBytes
	})
	if err != nil {
		return nil, fmt.Errorf("load events: %w", err)
	}
	byID := make(map[string]*eventrow.Row, len(rows))
	for i := range rows {
		byID[rows[i].ID] = &rows[i]
	}
	var out []Delivery
	var back []store.Leased
	for _, d := range chosen {
		event := byID[d.EventID]
		switch {
		case event == nil && more:
			back = append(back, d)
		case event == nil || event.Malformed != "":
			if _, err := r.end(ctx, owner, d, unreadable(event), 0); err != nil {
				return nil, err
			}
		default:
			out = append(out, Delivery{Event: event, Lease: Lease{Row: d.ID, Version: d.Version, Owner: owner}, Until: until, Attempt: d.Attempts})
		}
	}
	return out, r.putBack(ctx, owner, back)
}

// unreadable is the verdict on a delivery whose event cannot be handed out.
func unreadable(event *eventrow.Row) store.Verdict {
	v := store.Verdict{Status: store.Dead, Counts: true, Error: "the event's row does not exist any more"}
	if event != nil {
		v.Error = event.Malformed
	}
	return v
}
