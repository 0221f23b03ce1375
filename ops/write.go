package ops

import (
	"context"
	"time"
	"unicode/utf8"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/kind"
	"github.com/bluecone-go/bluecone/internal/store/view"
	"github.com/bluecone-go/bluecone/internal/text"
	"github.com/bluecone-go/bluecone/outbox"
)

// Retry makes deliveries of the event due at once, with all their attempts before them: those of
// the named consumers, or every DEAD or FAILED one. What somebody has skipped or discarded stays so: see [Ops.Reopen].
func (o *Ops) Retry(ctx context.Context, op Operation, eventID string, consumers ...string) error {
	iv := outbox.Intervention{Action: outbox.ActionRetry, EventID: eventID, Consumers: consumers, KeepSkipped: true}
	return o.acts.changeEvent(ctx, op, "retry", eventID, consumers, func() error { return o.ob.Intervene(ctx, op, iv) })
}

// Reopen makes a delivery due at once although it was skipped or discarded. It runs behind the later events of its aggregate that
// have run meanwhile. It undoes a skip and a discard, so ask for the permissions for both.
func (o *Ops) Reopen(ctx context.Context, op Operation, eventID, consumer string) error {
	return o.acts.changeEvent(ctx, op, "reopen", eventID, []string{consumer},
		func() error { return o.ob.Retry(ctx, op, eventID, consumer) })
}

// Skip closes a delivery without an effect. Later events of its aggregate may then pass.
func (o *Ops) Skip(ctx context.Context, op Operation, eventID, consumer string) error {
	return o.acts.changeEvent(ctx, op, "skip", eventID, []string{consumer},
		func() error { return o.ob.Skip(ctx, op, eventID, consumer) })
}

// Discard gives up an event: every delivery that is not done is skipped, with the reason. An event
// that is being delivered at this moment cannot be discarded.
func (o *Ops) Discard(ctx context.Context, op Operation, eventID string) error {
	return o.acts.changeEvent(ctx, op, "discard", eventID, nil, func() error { return o.ob.Discard(ctx, op, eventID) })
}

// Replay runs the delivery of an event to one consumer again although it has succeeded, in a slow
// lane of its own. It answers [ErrNotReplayable] unless the consumer is
// bus.ConsumerConfig.Replayable. To ask for a replay that still waits changes nothing, and answers
// [ErrNotFound].
func (o *Ops) Replay(ctx context.Context, op Operation, eventID, consumer string) error {
	return o.acts.changeEvent(ctx, op, "replay", eventID, []string{consumer},
		func() error { return o.ob.Replay(ctx, op, eventID, consumer) })
}

// Backfill delivers a past event to a consumer that was registered later and has never had it: once, in the order of its
// aggregate. From then on later events of the aggregate wait behind it; what the consumer has had before stays done. The
// event must still have its row, so retention limits how far back this goes. For many events start a bulk operation with
// [ActionBackfill].
func (o *Ops) Backfill(ctx context.Context, op Operation, eventID, consumer string) error {
	return o.acts.changeEvent(ctx, op, "backfill", eventID, []string{consumer},
		func() error {
			return o.ob.Intervene(ctx, op, outbox.Intervention{Action: outbox.ActionBackfill, EventID: eventID, Consumers: []string{consumer}})
		})
}

// Pause stops a consumer, and its replays, in the whole deployment, for d (0 means until it is
// resumed). Its deliveries wait; nobody else's do.
func (o *Ops) Pause(ctx context.Context, op Operation, consumer string, d time.Duration) error {
	if d < 0 {
		return invalidf("ops: pause %s for %v: it must not be negative (0 means until it is resumed)", text.Quote(consumer), d)
	}
	return o.acts.steer(ctx, op, []field{{"consumer", consumer}}, func() error { return o.ob.Pause(ctx, op, consumer, d) })
}

// Resume ends a pause. If there is none, it changes nothing and leaves nothing in the audit log.
func (o *Ops) Resume(ctx context.Context, op Operation, consumer string) error {
	return o.acts.steer(ctx, op, []field{{"consumer", consumer}}, func() error { return o.ob.Resume(ctx, op, consumer) })
}

// Retire removes a consumer that no code has any more from the registry, so that new events no
// longer wait for it; or, if there are any event types, only these of them. Skip what already waits.
func (o *Ops) Retire(ctx context.Context, op Operation, consumer string, eventTypes ...string) error {
	typed := []field{{"consumer", consumer}}
	for _, t := range eventTypes {
		typed = append(typed, field{"event type", t})
	}
	return o.acts.steer(ctx, op, typed, func() error { return o.ob.Retire(ctx, op, consumer, eventTypes...) })
}

// Refused writes into the audit log that somebody tried what they may not do: the reason of the operation says why not.
func (o *Ops) Refused(ctx context.Context, op Operation, route string) error {
	return o.acts.audited(ctx, op, "refused", route, "", nil)
}

// Payload reveals the payload of an event, and writes that into the audit log. What Config names as
// personal stays hidden.
func (o *Ops) Payload(ctx context.Context, op Operation, eventID string) (Payload, error) {
	var p Payload
	err := o.acts.audited(ctx, op, "reveal payload", eventID, "", func(ctx context.Context, tx bun.Tx) (err error) {
		p, err = o.search.payload(ctx, tx, eventID)
		return err
	})
	if err != nil {
		return Payload{}, err
	}
	return p, nil
}

// payload reads the payload of an event that the caller may see.
func (l *loader) payload(ctx context.Context, tx bun.Tx, eventID string) (Payload, error) {
	for _, from := range []view.Table{view.Events, view.EventsArchive} {
		r, found, err := view.PayloadOf(ctx, tx, l.access.sql, from, eventID, payloadText)
		if err != nil {
			return Payload{}, err
		}
		if !found {
			continue
		}
		if !CallerOf(ctx).Sees(r.TenantID) {
			return Payload{}, kind.Of(noPayload(), ErrOtherTenant)
		}
		if utf8.RuneCountInString(r.Payload) > payloadText || utf8.RuneCountInString(r.Metadata) > payloadText {
			return Payload{}, invalidf("ops: the payload of %s has more than %d characters: look at it in the database",
				text.Quote(eventID), payloadText)
		}
		var p Payload
		var inPayload, inMetadata bool
		p.Payload, inPayload = l.redactor.payload(r.EventType, r.Payload)
		p.Metadata, inMetadata = l.redactor.result(r.EventType, r.Metadata)
		p.Redacted = inPayload || inMetadata
		return p, nil
	}
	return Payload{}, noPayload()
}

func noPayload() error {
	return unknownf("there is no event of that id that still has its payload")
}
