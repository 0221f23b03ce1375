package settle

import (
	"context"
	"slices"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/store"
)

// RollUpBatch is how many events one roll-up should lock.
const RollUpBatch = 100

// Change is an event that has got a new status.
type Change struct {
	EventID, EventType string
	Status             Status
}

// RollUp brings the status of FAILED, DEAD and SENT events up to date with their deliveries, in one short transaction.
func (s *Settler) RollUp(ctx context.Context, eventIDs []string) (changes []Change, err error) {
	err = s.inTx(ctx, func(ctx context.Context, tx bun.Tx) error {
		events, err := s.events.LockEvents(ctx, tx, eventIDs)
		if err != nil {
			return err
		}
		changes, err = s.RollUpIn(ctx, tx, events)
		return err
	})
	if err != nil {
		return nil, err
	}
	return changes, nil
}

// Lock locks the rows of the events that exist, in the order of their outbox ids, for [Settler.RollUpIn].
func (s *Settler) Lock(ctx context.Context, tx bun.Tx, eventIDs []string) ([]store.LockedEvent, error) {
	return s.events.LockEvents(ctx, tx, eventIDs)
}

// RollUpIn is [Settler.RollUp] for events whose rows the transaction has locked. Events that a publisher has leased are left to
// its settling, which looks under the same lock.
func (s *Settler) RollUpIn(ctx context.Context, tx bun.Tx, events []store.LockedEvent) ([]Change, error) {
	var ids []string
	for _, e := range events {
		if mayRollUp(e) {
			ids = append(ids, e.EventID)
		}
	}
	if len(ids) == 0 {
		return nil, nil
	}
	sums, err := s.deliveries.Summaries(ctx, tx, ids)
	if err != nil {
		return nil, err
	}
	changed := make(map[Status][]store.LockedEvent)
	for _, e := range events {
		if now := rolledUp(Status(e.Status), sums[e.EventID]); mayRollUp(e) && now != Status(e.Status) {
			changed[now] = append(changed[now], e)
		}
	}
	var changes []Change
	for now, same := range changed {
		made, err := s.Set(ctx, tx, now, same, true) // without any, a FAILED event is not SENT, and others stay
		if err != nil {
			return nil, err
		}
		changes = append(changes, made...)
	}
	return changes, nil
}

func mayRollUp(e store.LockedEvent) bool {
	return slices.Contains([]Status{Failed, Dead, Sent}, Status(e.Status))
}

// Set gives locked events a status that follows from their deliveries. With deleteSent it deletes what is SENT, if the log has
// deliveries of it: nothing else would tell that an event has been there.
func (s *Settler) Set(ctx context.Context, tx bun.Tx, status Status, events []store.LockedEvent, inLog bool) ([]Change, error) {
	ids, changes := make([]int64, len(events)), make([]Change, len(events))
	for i, e := range events {
		ids[i], changes[i] = e.ID, Change{EventID: e.EventID, EventType: e.EventType, Status: status}
	}
	if status == Sent && s.deletesSent && inLog {
		return changes, s.events.Delete(ctx, tx, ids)
	}
	return changes, s.events.SetStatus(ctx, tx, ids, string(status))
}
