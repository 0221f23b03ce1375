package ops

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/doctor"
	"github.com/bluecone-go/bluecone/internal/text"
	"github.com/bluecone-go/bluecone/outbox"
)

// Retry makes deliveries of the event due at once, with all their attempts before them: those of
// the named consumers, or every DEAD or FAILED one. What somebody has skipped or discarded stays so: see [Ops.Reopen].
func (o *Ops) Retry(ctx context.Context, op Operation, eventID string, consumers ...string) error {
	typed := []field{{"event id", eventID}}
	for _, c := range consumers {
		typed = append(typed, field{"consumer", c})
	}
	iv := outbox.Intervention{Action: outbox.ActionRetry, EventID: eventID, Consumers: consumers, KeepSkipped: true}
	return o.changeEvent(ctx, op, typed, eventID, func() error { return o.ob.Intervene(ctx, op, iv) })
}

// Reopen makes a delivery due at once although it was skipped or discarded. Whoever may do this undoes a skip and a
// discard, so ask for the permissions for both.
func (o *Ops) Reopen(ctx context.Context, op Operation, eventID, consumer string) error {
	return o.changeEvent(ctx, op, []field{{"event id", eventID}, {"consumer", consumer}}, eventID, func() error { return o.ob.Retry(ctx, op, eventID, consumer) })
}

// Skip closes a delivery without an effect. Later events of its aggregate may then pass.
func (o *Ops) Skip(ctx context.Context, op Operation, eventID, consumer string) error {
	return o.changeEvent(ctx, op, []field{{"event id", eventID}, {"consumer", consumer}}, eventID, func() error { return o.ob.Skip(ctx, op, eventID, consumer) })
}

// Discard gives up an event: every delivery that is not done is skipped, with the reason. An event
// that is being delivered at this moment cannot be discarded.
func (o *Ops) Discard(ctx context.Context, op Operation, eventID string) error {
	return o.changeEvent(ctx, op, []field{{"event id", eventID}}, eventID, func() error { return o.ob.Discard(ctx, op, eventID) })
}

// Replay runs the delivery of an event to one consumer again although it has succeeded, in a slow
// lane of its own. It answers [ErrNotReplayable] unless the consumer is
// bus.ConsumerConfig.Replayable. To ask for a replay that still waits changes nothing, and answers
// [ErrNotFound].
func (o *Ops) Replay(ctx context.Context, op Operation, eventID, consumer string) error {
	return o.changeEvent(ctx, op, []field{{"event id", eventID}, {"consumer", consumer}}, eventID, func() error { return o.ob.Replay(ctx, op, eventID, consumer) })
}

// Pause stops a consumer, and its replays, in the whole deployment, for d (0 means until it is
// resumed). Its deliveries wait; nobody else's do.
func (o *Ops) Pause(ctx context.Context, op Operation, consumer string, d time.Duration) error {
	if d < 0 {
		return invalidf("ops: pause %s for %v: it must not be negative (0 means until it is resumed)", text.Quote(consumer), d)
	}
	return o.steer(ctx, op, []field{{"consumer", consumer}}, func() error { return o.ob.Pause(ctx, op, consumer, d) })
}

// Resume ends a pause.
func (o *Ops) Resume(ctx context.Context, op Operation, consumer string) error {
	return o.steer(ctx, op, []field{{"consumer", consumer}}, func() error { return o.ob.Resume(ctx, op, consumer) })
}

// Retire removes a consumer that no code has any more from the registry, so that new events no
// longer wait for it; or, if there are any event types, only these of them. Skip what already waits.
func (o *Ops) Retire(ctx context.Context, op Operation, consumer string, eventTypes ...string) error {
	typed := []field{{"consumer", consumer}}
	for _, t := range eventTypes {
		typed = append(typed, field{"event type", t})
	}
	return o.steer(ctx, op, typed, func() error { return o.ob.Retire(ctx, op, consumer, eventTypes...) })
}

// changeEvent changes an event that the caller may see.
func (o *Ops) changeEvent(ctx context.Context, op Operation, typed []field, eventID string, do func() error) error {
	return o.change(op, typed, func() error {
		if err := o.mayChange(ctx, eventID); err != nil {
			return err
		}
		return do()
	})
}

// steer changes a consumer in the whole deployment.
func (o *Ops) steer(ctx context.Context, op Operation, typed []field, do func() error) error {
	if err := CallerOf(ctx).whole("a consumer"); err != nil {
		return err
	}
	return o.change(op, typed, do)
}

// change does something with what somebody has typed, and forgets the answers that it makes stale.
func (o *Ops) change(op Operation, typed []field, do func() error) error {
	errs := []error{op.Validate()}
	for _, f := range typed {
		errs = append(errs, text.Key("ops: "+f.name, f.value, longest))
	}
	if err := asInvalid(errors.Join(errs...)); err != nil {
		return err
	}
	defer o.access.forget()
	return do()
}

// Refused writes into the audit log that somebody tried what they may not do: the reason of the operation says why not.
func (o *Ops) Refused(ctx context.Context, op Operation, route string) error {
	return o.audited(ctx, op, "refused", route, "", nil)
}

// Doctor examines the database.
func (o *Ops) Doctor(ctx context.Context) (doctor.Report, error) {
	if err := CallerOf(ctx).whole("an examination"); err != nil {
		return nil, err
	}
	return doctor.Examine(ctx, o.db, o.cfg.Doctor)
}

// Payload reveals the payload of an event, and writes that into the audit log. What Config names as
// personal stays hidden.
func (o *Ops) Payload(ctx context.Context, op Operation, eventID string) (Payload, error) {
	var p Payload
	err := o.audited(ctx, op, "reveal payload", eventID, "", func(ctx context.Context, tx bun.Tx) error {
		var eventType string
		for _, from := range []string{eventTable, archiveTable} {
			var tenant int64
			err := tx.QueryRowContext(ctx, "SELECT "+o.name("e.event_type")+", "+cut(o.d.Text("e.event_payload"), payloadText)+", COALESCE("+cut(o.d.Text("e.event_metadata"), payloadText)+", ''), COALESCE(e.tenant_id, 0) FROM "+from+" e WHERE e.event_id = ?", eventID).
				Scan(&eventType, &p.Payload, &p.Metadata, &tenant)
			if errors.Is(err, sql.ErrNoRows) || err == nil && !CallerOf(ctx).Sees(tenant) {
				continue
			}
			if err != nil {
				return err
			}
			if utf8.RuneCountInString(p.Payload) > payloadText || utf8.RuneCountInString(p.Metadata) > payloadText {
				return invalidf("ops: the payload of %s has more than %d characters: look at it in the database", text.Quote(eventID), payloadText)
			}
			var inPayload, inMetadata bool
			p.Payload, inPayload = o.redactor.payload(eventType, p.Payload)
			p.Metadata, inMetadata = o.redactor.result(eventType, p.Metadata)
			p.Redacted = inPayload || inMetadata
			return nil
		}
		return fmt.Errorf("there is no event of that id that still has its payload: %w", ErrNotFound)
	})
	if err != nil {
		return Payload{}, err
	}
	return p, nil
}
