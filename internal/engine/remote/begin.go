package remote

import (
	"context"
	"errors"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/store"
)

// Decision is the answer to a consumer that wants to run an event.
type Decision struct {
	IsGo       bool
	Lease      Lease
	Until      time.Time
	IsDone     bool   // the delivery has ended before
	Result     string // of that end, JSON text
	RetryAfter time.Duration
}

// untilNext is when to ask again about an event behind an unfinished one.
const untilNext = time.Second

// Begin leases a consumer's delivery of one event, unless it has ended or somebody else has it, or an earlier event of its
// aggregate is unfinished for the consumer, or that is paused. It returns [ErrUnknown] or [ErrDead] where that is so, and ends a
// delivery first whose attempts programs have used up that died of it.
func (r *Deliveries) Begin(ctx context.Context, consumer, eventID string) (d Decision, err error) {
	paused, err := r.registry.IsPaused(ctx, r.db, consumer)
	if err != nil {
		return d, err
	}
	owner := newOwner()
	var over []store.Leased
	err = r.inTx(ctx, func(ctx context.Context, tx bun.Tx) error {
		d, over = Decision{}, nil
		row, err := r.lockOrAdd(ctx, tx, consumer, eventID)
		if err != nil {
			return err
		}
		switch {
		case row.Status.Done():
			d = Decision{IsDone: true, Result: row.Result}
			return nil
		case row.Status == store.Dead:
			return ErrDead
		case paused:
			d = Decision{RetryAfter: untilNext}
			return nil
		case row.IsLeased():
			d = Decision{RetryAfter: max(time.Duration(row.Until-row.Now)*time.Microsecond, time.Millisecond)}
			return nil
		}
		if blocked, err := r.isBlocked(ctx, tx, consumer, owner, row); err != nil || blocked {
			d = Decision{RetryAfter: untilNext}
			return err
		}
		d, over, err = r.take(ctx, tx, owner, row)
		return err
	})
	if err != nil || len(over) == 0 {
		return d, err
	}
	if err := r.endUsedUp(ctx, owner, over); err != nil {
		return d, err
	}
	return d, ErrDead
}

// lockOrAdd locks the row of a delivery. If the event waits for no such consumer yet, it gets a row; an event that was SENT is open
// again then, so that it holds up later ones of its aggregate.
func (r *Deliveries) lockOrAdd(ctx context.Context, tx bun.Tx, consumer, eventID string) (store.RemoteRow, error) {
	row, found, err := r.rows.LockOf(ctx, tx, consumer, eventID)
	if err != nil || found {
		return row, err
	}
	events, _, err := store.EventsByID(ctx, tx, r.d, []string{eventID}, func(int) bool { return true })
	if err != nil {
		return row, err
	}
	if len(events) == 0 {
		return row, ErrUnknown
	}
	e := events[0]
	locked, err := r.settler.Lock(ctx, tx, []string{e.ID})
	if err != nil {
		return row, err
	}
	err = r.log.Defer(ctx, tx, []store.Delivery{{
		Consumer: consumer, EventID: e.ID, EventType: e.Type, OutboxID: e.OutboxID,
		AggregateType: e.AggregateType, AggregateID: e.AggregateID, TenantID: e.TenantID,
	}}, 0)
	if err != nil {
		return row, err
	}
	if _, err := r.settler.RollUpIn(ctx, tx, locked); err != nil {
		return row, err
	}
	if row, found, err = r.rows.LockOf(ctx, tx, consumer, eventID); err == nil && !found {
		err = errors.New("the delivery was removed while it was added: ask again")
	}
	return row, err
}

func (r *Deliveries) isBlocked(ctx context.Context, tx bun.Tx, consumer, owner string, row store.RemoteRow) (bool, error) {
	answers, err := r.log.Ask(ctx, tx, gate(consumer, owner, []string{row.EventType}),
		[]store.Asked{{Event: dialect.Pair{ID: row.OutboxID}, Aggregate: row.Aggregate()}})
	return answers[row.OutboxID] == store.Blocked, err
}

// take leases a row that is locked and may run. Its start is noted by the same transaction. What a program that has died may have
// started runs, waits or ends by the rule of takeLeft: its lease is to be ended if its attempts are used up.
func (r *Deliveries) take(ctx context.Context, tx bun.Tx, owner string, row store.RemoteRow) (d Decision, over []store.Leased, err error) {
	if row.Suspect {
		highest, err := r.rows.LockCounted(ctx, tx, row.Consumer, r.cfg.Lease)
		if err != nil {
			return d, nil, err
		}
		next := row.Leased
		next.Attempts++
		if _, not := mayRun([]store.Leased{next}, highest); len(not) > 0 {
			return Decision{RetryAfter: untilNext}, nil, nil
		}
	}
	leased, err := r.rows.Take(ctx, tx, owner, r.cfg.Lease, row)
	if err != nil {
		return d, nil, err
	}
	if leased.Suspect {
		if _, over = r.notUsedUp([]store.Leased{leased}); len(over) > 0 {
			return d, over, nil
		}
	}
	if err := r.rows.NoteStart(ctx, tx, leased); err != nil {
		return d, nil, err
	}
	return Decision{
		IsGo: true, Until: r.until(row.Now), Lease: Lease{Row: leased.ID, Version: leased.Version, Owner: owner},
	}, nil, nil
}
