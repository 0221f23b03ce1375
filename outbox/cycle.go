package outbox

import (
	"context"
	"fmt"
	"time"

	due "github.com/bluecone-go/bluecone/internal/engine/claim"
	"github.com/bluecone-go/bluecone/internal/store"
)

// turn takes what was handed over, or else claims.
func (s *session) turn(ctx context.Context, handed, beat, full bool) error {
	if handed {
		s.agenda.Worked(time.Now())
		done, err := s.receive(ctx)
		if err != nil || (done && !beat) {
			return err
		}
		if !done {
			s.agenda.Add(time.Now(), due.Of(due.New))
		}
	}
	return s.cycle(ctx, beat, full, false)
}

// cycle claims what is due and hands it to the lanes, each kind in its turn, until nothing that it knows of is left. Unless
// it has to be exhaustive, it ends when the time has come to look again at what else has fallen due.
func (s *session) cycle(ctx context.Context, beat, full, exhaustive bool) error {
	if full {
		if err := s.sweep(ctx); err != nil {
			return err
		}
		s.claimer.WalkThoroughly()
	}
	if beat {
		if err := s.peek(ctx); err != nil {
			return err
		}
	}
	err := s.claimInTurns(ctx, exhaustive)
	if !full || err != nil {
		return err
	}
	s.claimer.Relax()
	if err := s.spiller.write(ctx); err != nil {
		return err
	}
	waiting, err := s.p.ob.queues.DueConsumers(ctx, s.p.ob.db) // also what the claims have made wait
	if err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	return s.lanes.Retry(ctx, waiting)
}

// claimInTurns claims what is known to be due.
func (s *session) claimInTurns(ctx context.Context, exhaustive bool) error {
	until := s.agenda.NextLook(s.p.cfg.Poll)
	for ctx.Err() == nil && s.agenda.Due() != 0 {
		if !exhaustive && !time.Now().Before(until) {
			signal(s.more)
			return nil
		}
		pages := s.pages()
		kind, ok := s.agenda.Next(pages.kinds())
		switch {
		case !ok:
			s.waitForRoom(ctx)
		case kind == due.Deliveries:
			s.agenda.Taken(kind, false)
			if err := s.lanes.Retry(ctx, s.waiting); err != nil {
				return err
			}
		default:
			more, err := s.claimPage(ctx, kind, pages[kind])
			if err != nil {
				return err
			}
			s.agenda.Taken(kind, more)
		}
	}
	return nil
}

// waitForRoom waits until it may be worth asking again for what there is room.
func (s *session) waitForRoom(ctx context.Context) {
	s.silence.Reset()
	select {
	case <-s.flights.settled:
	case <-s.lanes.Freed():
	case <-time.After(20 * time.Millisecond): // a lane may have to fall behind
	case <-ctx.Done():
	}
}

// pages are how many events of each kind a claim takes now.
type pages [due.Expired + 1]int

// pages tells that of the kinds that are due: 0 if there is not enough room for a claim to be worth it.
func (s *session) pages() (p pages) {
	for kind := range p {
		if kind := due.Kind(kind); s.agenda.Due().Has(kind) {
			p[kind] = s.pageSize(kind)
		}
	}
	return p
}

// kinds are those of which a claim is worth it, and the deliveries, for which the lanes see to their room.
func (p pages) kinds() due.Kinds {
	kinds := due.Of(due.Deliveries)
	for kind, size := range p {
		if size > 0 {
			kinds |= due.Of(due.Kind(kind))
		}
	}
	return kinds
}

func (s *session) pageSize(kind due.Kind) int {
	most := s.p.cfg.BatchSize
	room, window := s.lanes.RoomFor(kind)
	if kind == due.New {
		most = s.size
		room, window = s.lanes.Room()
	}
	size := min(s.flights.free(), room, most)
	if size < due.WorthwhileRoom(min(s.flights.most, window, most)) {
		return 0
	}
	return size
}

// claimPage claims once, and reports whether more of the kind is due.
func (s *session) claimPage(ctx context.Context, kind due.Kind, size int) (more bool, err error) {
	if again := s.claimer.Rests(time.Now(), kind, s.lanes.QueuesAreEmpty()); again > 0 {
		s.alarm.set(again)
		return false, nil
	}
	s.silence.Reset()
	began := time.Now()
	r, err := s.claimNext(ctx, kind, size)
	if err != nil {
		return false, err
	}
	took := time.Since(began)
	if len(r.Rows) > 0 {
		if err := s.dispatch(ctx, claim{Result: r}); err != nil {
			return false, err
		}
	}
	if kind == due.New {
		s.size = due.PageSize(s.p.cfg.BatchSize, r.IsFull)
		if len(r.Rows) > 0 && r.IsFull {
			if err := s.claimOtherTenants(ctx, r); err != nil {
				return false, err
			}
		}
	}
	s.passedOver = s.passedOver || r.IsBlocked()
	more, again := s.claimer.GoOn(time.Now(), r, took)
	if again > 0 {
		s.alarm.set(again)
	}
	return more, nil
}

// alarm tells the loop, which owns it, that it is time to claim NEW events again.
type alarm struct {
	isSet bool // until the loop has heard it
	rings chan struct{}
}

func newAlarm() alarm { return alarm{rings: make(chan struct{}, 1)} }

// set lets the alarm ring after a while, unless it is set already.
func (a *alarm) set(after time.Duration) {
	if a.isSet {
		return
	}
	a.isSet = true
	rings := a.rings
	time.AfterFunc(after, func() { signal(rings) })
}

// peek looks, in one statement that locks nothing, for kinds of due work that it does not know of. An instance that
// has nothing to do asks nothing else.
func (s *session) peek(ctx context.Context) error {
	known := s.agenda.Due()
	ask := store.DueQuestion{
		New: !known.Has(due.New), Scheduled: !known.Has(due.Scheduled), Expired: !known.Has(due.Expired), Deliveries: !known.Has(due.Deliveries),
		Left: s.lanes.Left(),
	}
	began := time.Now()
	answer, err := s.p.ob.claims.LookForDue(ctx, s.p.ob.db, ask)
	if err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	if answer.Left {
		if err := s.lanes.TakeLeft(ctx); err != nil {
			return err
		}
	}
	s.agenda.Looked(began, time.Now(), s.kindsOf(answer))
	return nil
}

// kindsOf are the kinds of due work that this instance can do something about. It notes for which consumers deliveries are due.
func (s *session) kindsOf(a store.DueAnswer) (found due.Kinds) {
	for kind, isDue := range map[due.Kind]bool{due.New: a.New, due.Scheduled: a.Scheduled, due.Expired: a.Expired} {
		if isDue {
			found |= due.Of(kind)
		}
	}
	if s.lanes.Has(a.Consumers) { // otherwise they wait for other instances
		s.waiting, found = a.Consumers, found|due.Of(due.Deliveries)
	}
	return found
}
