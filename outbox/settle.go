package outbox

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/engine/delivery"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/telemetry"
)

const settleTries = 5

// settle ends flights: it writes the status of their events and their leases are over.
// A database in trouble is tried again a few times; then the leases expire.
func (s *session) settle(ctx context.Context, flights []*flight) error {
	slices.SortFunc(flights, byID)
	for try := 1; ; try++ {
		err := s.settleOnce(ctx, flights)
		if err == nil || try == settleTries || ctx.Err() != nil {
			return err
		}
		select {
		case <-time.After(rand.N(time.Duration(try) * 50 * time.Millisecond)):
		case <-ctx.Done():
		}
	}
}

// settleOnce settles what is SENT for certain with one statement, and the rest in one transaction.
func (s *session) settleOnce(ctx context.Context, flights []*flight) error {
	if err := s.recheck(ctx, flights); err != nil {
		return err
	}
	var sent, rest []*flight
	for _, f := range flights {
		switch {
		case f.status == StatusSent: // by an earlier try
		case f.delivered():
			sent = append(sent, f)
		default:
			rest = append(rest, f)
		}
	}
	defer s.lanes.Turn()()
	if err := s.write(ctx, s.p.ob.db, sent, ending{status: StatusSent}); err != nil || len(rest) == 0 {
		return err
	}
	return s.p.ob.inTx(ctx, func(ctx context.Context, tx bun.Tx) error { return s.settleIn(ctx, tx, rest) })
}

func (s *session) settleIn(ctx context.Context, tx bun.Tx, rest []*flight) error {
	// The others' status depends on rows that somebody else may be writing: look at
	// them only under the lock of the event's row.
	mine, err := s.lockMine(ctx, tx, rest)
	if err != nil || len(mine) == 0 {
		return err
	}
	states, err := s.look(ctx, tx, mine)
	if err != nil {
		return err
	}
	groups := make(map[ending][]*flight)
	for _, f := range mine {
		e := s.endingOf(f, states[f.row.ID])
		groups[e] = append(groups[e], f)
	}
	for e, same := range groups {
		if err := s.write(ctx, tx, same, e); err != nil {
			return err
		}
	}
	return nil
}

// look reads what the log says of the flights' deliveries: of an event that went well here, only of those that wait.
func (s *session) look(ctx context.Context, tx bun.Tx, flights []*flight) (map[string]map[string]store.Status, error) {
	var certain, others []string
	waiting := make(map[string]struct{})
	for _, f := range flights {
		if !f.certain() {
			others = append(others, f.row.ID)
			continue
		}
		certain = append(certain, f.row.ID)
		for _, key := range f.waits {
			waiting[key] = struct{}{}
		}
	}
	states, err := s.p.ob.log.States(ctx, tx, others)
	if err != nil || len(certain) == 0 {
		return states, err
	}
	more, err := s.p.ob.log.States(ctx, tx, certain, slices.Sorted(maps.Keys(waiting))...)
	maps.Copy(states, more) // of other events
	return states, err
}

// ending is how the lease of an event ends.
type ending struct {
	status Status
	delay  time.Duration // until it is due again, if it is to be claimed again
	failed bool          // a delivery has failed, and what it said is to be kept
}

// endingOf follows from the states of the deliveries that needed a look.
func (s *session) endingOf(f *flight, states map[string]store.Status) ending {
	e := ending{status: statusOf(states, missing(f, states))}
	switch {
	case e.status == StatusNew && s.draining.Load():
	case e.status == StatusNew:
		e.status, e.delay = StatusScheduled, time.Second
	case e.status != StatusSent:
		for _, st := range states {
			e.failed = e.failed || st == store.Failed || st == store.Dead
		}
	}
	return e
}

// statusOf is the status of an event whose deliveries are in the given states; New means
// that some have no row yet, so that the event must be claimed again.
func statusOf(states map[string]store.Status, missing bool) Status {
	dead := false
	for _, st := range states {
		if st.Waiting() {
			if missing {
				return StatusNew
			}
			return StatusFailed
		}
		dead = dead || st == store.Dead
	}
	switch {
	case missing:
		return StatusNew
	case dead:
		return StatusDead
	}
	return StatusSent
}

// missing reports whether a consumer that must get the event has no row.
func missing(f *flight, states map[string]store.Status) bool {
	for _, key := range f.uncertain() {
		if _, ok := states[key]; !ok {
			return true
		}
	}
	return false
}

// lockMine locks the rows that are still leased by this instance under the flights' tokens.
func (s *session) lockMine(ctx context.Context, tx bun.Tx, flights []*flight) ([]*flight, error) {
	held, err := s.p.ob.settling().LockHeld(ctx, tx, s.p.owner, pairsOf(flights))
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	mine := slices.DeleteFunc(slices.Clone(flights), func(f *flight) bool { return !f.isAmong(held) })
	s.countLost(ctx, len(flights)-len(mine))
	return mine, nil
}

// isAmong reports whether the flight's event is among ids, which are in order.
func (f *flight) isAmong(ids []int64) bool {
	_, ok := slices.BinarySearch(ids, f.row.OutboxID)
	return ok
}

// write ends leases. Rows that are no longer ours stay as they are.
func (s *session) write(ctx context.Context, tx bun.IDB, flights []*flight, e ending) error {
	if len(flights) == 0 {
		return nil
	}
	if e.status == StatusSent && s.p.ob.cfg.DeleteSent {
		return s.writeSent(ctx, tx, flights)
	}
	return s.update(ctx, tx, flights, e)
}

// writeSent deletes what is SENT, but for events without a consumer: nothing else would tell that
// they have been there.
func (s *session) writeSent(ctx context.Context, tx bun.IDB, flights []*flight) error {
	var traced, untraced []*flight
	for _, f := range flights {
		if len(f.needed) > 0 {
			traced = append(traced, f)
		} else {
			untraced = append(untraced, f)
		}
	}
	if len(traced) > 0 {
		lost, err := s.p.ob.settling().DeleteHeld(ctx, tx, s.p.owner, pairsOf(traced))
		if err := s.ended(ctx, traced, StatusSent, lost, err); err != nil {
			return err
		}
	}
	return s.update(ctx, tx, untraced, ending{status: StatusSent})
}

func (s *session) update(ctx context.Context, tx bun.IDB, flights []*flight, e ending) error {
	for version, same := range byVersion(flights) {
		lost, err := s.p.ob.settling().End(ctx, tx, s.p.owner, idsOf(same), version, store.Ending{Status: string(e.status), Delay: e.delay, Failed: e.failed})
		if err := s.ended(ctx, same, e.status, lost, err); err != nil {
			return err
		}
	}
	return nil
}

// ended notes what a statement that ends the leases of flights has answered.
func (s *session) ended(ctx context.Context, flights []*flight, status Status, lost int, err error) error {
	if err != nil {
		return fmt.Errorf("settle as %s: %w", status, err)
	}
	s.countLost(ctx, lost)
	for _, f := range flights {
		f.status = status
	}
	return nil
}

// giveBack returns leased events that were not dispatched.
func (s *session) giveBack(ctx context.Context, flights []*flight, e ending, why string) error {
	if len(flights) == 0 {
		return nil
	}
	return s.p.ob.inTx(ctx, func(ctx context.Context, tx bun.Tx) error {
		if err := s.write(ctx, tx, flights, e); err != nil || why == "" {
			return err
		}
		return s.p.ob.settling().NoteParked(ctx, tx, idsOf(flights), why)
	})
}

func (s *session) countLost(ctx context.Context, n int) {
	if n <= 0 {
		return
	}
	telemetry.Add(ctx, s.p.ob.metrics.LeaseLost, int64(n))
	s.p.ob.logger.WarnContext(ctx, "events were taken over by another instance before they were settled", telemetry.Count, n)
}

// announce counts and logs what has been settled.
func (s *session) announce(ctx context.Context, flights []*flight) {
	o := s.p.ob
	talks := o.logger.Enabled(ctx, slog.LevelDebug)
	for _, f := range flights {
		o.countStatus(ctx, f.status, f.row.ID, f.row.Type)
		if f.status != StatusSent {
			continue
		}
		if f.delivered() && f.row.Metadata[metaInstance] == o.cfg.Instance {
			telemetry.Add(ctx, o.metrics.LocalFirst, 1, telemetry.EventType, f.row.Type)
		}
		if talks {
			o.logger.DebugContext(ctx, "event sent", telemetry.EventID, f.row.ID, telemetry.EventType, f.row.Type, telemetry.AggregateID, f.row.AggregateID,
				telemetry.TraceID, f.row.Metadata[bus.MetaTraceID], telemetry.RequestID, f.row.Metadata[bus.MetaRequestID])
		}
	}
}

// renew prolongs the leases of all flights. A flight whose lease is lost is cancelled. It waits for nobody:
// a row that somebody writes is being settled, or is lost in a moment.
func (s *session) renew(ctx context.Context) error {
	flights := s.inFlight()
	if len(flights) == 0 {
		return s.lanes.Renew(ctx)
	}
	o, leases := s.p.ob, pairsOf(flights)
	var now int64
	var renewed []int64
	err := o.inTx(ctx, func(ctx context.Context, tx bun.Tx) (err error) {
		if now, err = o.settling().Now(ctx, tx); err != nil {
			return err
		}
		if renewed, err = o.settling().LockHeldAndFree(ctx, tx, s.p.owner, leases); err != nil || len(renewed) == 0 {
			return err
		}
		return o.settling().Extend(ctx, tx, renewed, s.p.cfg.Lease)
	})
	if err != nil {
		return fmt.Errorf("outbox: renew leases: %w", err)
	}
	held, err := o.settling().Held(ctx, o.db, s.p.owner, leases)
	if err != nil {
		return fmt.Errorf("outbox: renew leases: %w", err)
	}
	var lost []*delivery.Lease
	for _, f := range flights {
		switch {
		case f.isAmong(renewed):
			f.lease.Extend(now + dialect.Micro(s.p.cfg.Lease))
		case !f.isAmong(held) && f.open.Load() > 0:
			lost = append(lost, &f.lease)
		}
	}
	s.lanes.Lose(lost...)
	return s.lanes.Renew(ctx)
}
