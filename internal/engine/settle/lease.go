package settle

import (
	"context"
	"fmt"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/engine/claim"
	"github.com/bluecone-go/bluecone/internal/eventrow"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/telemetry"
)

// Return is how leased events that were not dispatched go back.
type Return struct {
	Status Status        // New or Scheduled
	Delay  time.Duration // until they are due
	Why    string        // for people, unless ""
}

// GiveBack returns leased events that were not dispatched. It tells how many another instance had taken over before.
func (s *Settler) GiveBack(ctx context.Context, owner string, leases []dialect.Pair, r Return) (lost int, err error) {
	if len(leases) == 0 {
		return 0, nil
	}
	events, done := make([]Event, len(leases)), Settled{Status: make(map[int64]Status, len(leases))}
	for i, l := range leases {
		events[i].Lease = l
	}
	err = s.inTx(ctx, func(ctx context.Context, tx bun.Tx) error {
		err := s.end(ctx, tx, owner, events, store.Ending{Status: string(r.Status), Delay: r.Delay}, &done)
		if err != nil || r.Why == "" {
			return err
		}
		return s.events.NoteParked(ctx, tx, idsOf(events), r.Why)
	})
	return len(done.Lost), err
}

// Renewal is what has become of leases that were to be renewed. Those that are neither renewed nor held have been lost.
type Renewal struct {
	Until   int64   // when the renewed ones end, in microseconds since the epoch by the database's clock
	renewed []int64 // outbox ids, in order
	held    []int64 // the same, of all that the owner still has
}

// IsRenewed reports whether the lease of an event, by its outbox id, was renewed.
func (r Renewal) IsRenewed(id int64) bool { return isAmong(id, r.renewed) }

// IsLost reports whether another instance has the event by now.
func (r Renewal) IsLost(id int64) bool { return !r.IsRenewed(id) && !isAmong(id, r.held) }

// Renew lets the owner's leases end after a while from now. It waits for nobody: a row that somebody writes is being settled,
// or is lost in a moment.
func (s *Settler) Renew(ctx context.Context, owner string, leases []dialect.Pair, length time.Duration) (r Renewal, err error) {
	err = s.inTx(ctx, func(ctx context.Context, tx bun.Tx) error {
		now, err := s.events.Now(ctx, tx)
		if err != nil {
			return err
		}
		r.Until = now + dialect.Micro(length)
		if r.renewed, err = s.events.LockHeldAndFree(ctx, tx, owner, leases); err != nil || len(r.renewed) == 0 {
			return err
		}
		return s.events.Extend(ctx, tx, r.renewed, length)
	})
	if err != nil {
		return Renewal{}, err
	}
	r.held, err = s.events.Held(ctx, s.db, owner, leases)
	return r, err
}

// GiveBack returns leased events that were not dispatched.
func (g *Settling) GiveBack(ctx context.Context, rows []eventrow.Row, r Return) error {
	leases := make([]dialect.Pair, len(rows))
	for i, row := range rows {
		leases[i] = leaseOf(row)
	}
	return g.giveBack(ctx, leases, r)
}

func (g *Settling) giveBack(ctx context.Context, leases []dialect.Pair, r Return) error {
	lost, err := g.cfg.Settler.GiveBack(ctx, g.cfg.Owner, leases, r)
	g.countLost(ctx, lost)
	return err
}

func (g *Settling) countLost(ctx context.Context, n int) {
	if n <= 0 {
		return
	}
	telemetry.Add(ctx, g.cfg.Meter.metrics.LeaseLost, int64(n))
	g.cfg.Meter.logger.WarnContext(ctx, "events were taken over by another instance before they were settled", telemetry.Count, n)
}

// Renew prolongs the leases of all events in flight, and answers those that are lost: what runs under them has to stop. It
// waits for nobody: a row that somebody writes is being settled, or is lost in a moment.
func (g *Settling) Renew(ctx context.Context) (lost []*claim.Lease, err error) {
	flights := g.cfg.Flights.all()
	if len(flights) == 0 {
		return nil, nil
	}
	leases := make([]dialect.Pair, len(flights))
	for i, f := range flights {
		leases[i] = leaseOf(f.Row)
	}
	r, err := g.cfg.Settler.Renew(ctx, g.cfg.Owner, leases, g.cfg.Lease)
	if err != nil {
		return nil, fmt.Errorf("outbox: renew leases: %w", err)
	}
	for _, f := range flights {
		switch id := f.Row.OutboxID; {
		case r.IsRenewed(id):
			f.Lease.Extend(r.Until)
		case r.IsLost(id) && f.open.Load() > 0:
			lost = append(lost, &f.Lease)
		}
	}
	return lost, nil
}
