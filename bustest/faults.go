package bustest

import (
	"context"
	"database/sql/driver"
	"errors"
	"sync"

	"github.com/bluecone-go/bluecone/internal/inject"
)

// Fault is one way in which the world treats a delivery badly.
type Fault int

// The faults of the kit. Each befalls the first delivery of every event to every consumer;
// the next attempt is left in peace.
const (
	// FailBeforeCommit loses the connection instead of committing: nothing has taken effect.
	FailBeforeCommit Fault = iota
	// FailAfterCommit loses the answer of a COMMIT that did happen.
	FailAfterCommit
	// LoseLease lets another instance take the event over just before its delivery.
	LoseLease
	// HandlerError makes the attempt fail before the handler runs.
	HandlerError
	// HandlerPanic makes it panic.
	HandlerPanic
	// Duplicate hands the event out again when its delivery has just committed and nobody
	// has noted it yet, as a crash in that moment would.
	Duplicate
	// Reorder delivers different aggregates in the reverse order.
	Reorder
)

// ErrInjected is what HandlerError and HandlerPanic fail with.
var ErrInjected = errors.New("bustest: injected fault")

// Break turns the faults on every consumer of the harness, from the next Drain on. Without
// arguments it turns them off.
func (h *Harness) Break(faults ...Fault) {
	h.faults = inject.Faults{}
	for _, f := range faults {
		switch f {
		case FailBeforeCommit:
			h.faults.BeforeCommit = firstTime(func(string) error { return driver.ErrBadConn })
		case FailAfterCommit:
			h.faults.AfterCommit = firstTime(func(string) error { return driver.ErrBadConn })
		case LoseLease:
			h.faults.BeforeDelivery = firstTime(h.steal)
		case HandlerError:
			h.faults.BeforeHandler = single(firstTime(func(string) error { return ErrInjected }))
		case HandlerPanic:
			h.faults.BeforeHandler = single(firstTime(func(string) error { panic(ErrInjected) }))
		case Duplicate:
			h.faults.AfterCommit = firstTime(h.handOutAgain)
		case Reorder:
			h.faults.Reorder = true
		}
	}
}

// steal gives the event's leases to an instance that will never be heard of again.
func (h *Harness) steal(eventID string) error {
	ctx := context.Background()
	_, err := h.db.ExecContext(ctx, "UPDATE bc_outbox_event SET locked_by = 'thief', lock_version = lock_version + 1 WHERE event_id = ? "+
		"AND status = 'DISPATCHING'", eventID)
	if err != nil {
		return err
	}
	_, err = h.db.ExecContext(ctx, "UPDATE bc_event_consume_log SET locked_by = 'thief', lock_version = lock_version + 1 "+
		"WHERE event_id = ? AND status = 'PROCESSING'", eventID)
	return err
}

// handOutAgain makes a claimed event NEW.
func (h *Harness) handOutAgain(eventID string) error {
	_, err := h.db.ExecContext(context.Background(), "UPDATE bc_outbox_event SET status = 'NEW', locked_by = NULL, "+
		"lock_version = lock_version + 1 WHERE event_id = ? AND status = 'DISPATCHING'", eventID)
	return err
}

// firstTime lets a fault happen once per consumer and event.
func firstTime(fault func(eventID string) error) func(string, []string) error {
	var mu sync.Mutex
	seen := make(map[[2]string]bool)
	return func(consumer string, eventIDs []string) error {
		for _, id := range eventIDs {
			mu.Lock()
			again := seen[[2]string{consumer, id}]
			seen[[2]string{consumer, id}] = true
			mu.Unlock()
			if again {
				continue
			}
			if err := fault(id); err != nil {
				return err
			}
		}
		return nil
	}
}

func single(f func(string, []string) error) func(consumer, eventID string) error {
	return func(consumer, eventID string) error { return f(consumer, []string{eventID}) }
}
