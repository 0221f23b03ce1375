package ledger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"unicode/utf8"

	"connectrpc.com/connect"
	"github.com/google/uuid"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/spi"
	"github.com/bluecone-go/bluecone/ledger/ledgerv1"
	"github.com/bluecone-go/bluecone/outbox"
)

// publishing saves events for callers.
type publishing struct{ *part }

// Publish saves events in one transaction.
func (s publishing) Publish(ctx context.Context, req *connect.Request[ledgerv1.PublishRequest],
) (*connect.Response[ledgerv1.PublishResponse], error) {
	events := req.Msg.GetEvents()
	if len(events) == 0 || len(events) > maxEvents {
		return nil, invalid("events has %d entries: send 1 to %d", len(events), maxEvents)
	}
	raws, ids := make([]bus.Event, len(events)), make([]string, len(events))
	for i, e := range events {
		if e.GetCheckUrl() != "" {
			return nil, invalid("%s.checkUrl is for reservations only", pathOf(i))
		}
		raw, err := s.rawOf(ctx, e, pathOf(i))
		if err != nil {
			return nil, err
		}
		raws[i], ids[i] = withOptions(raw, e), raw.ID
	}
	err := spi.InTx(ctx, s.db, func(ctx context.Context, tx bun.Tx) error {
		if err := s.ob.Save(ctx, tx, raws...); err != nil {
			return err
		}
		return s.checkIDs(ctx, tx, events, pathOf)
	})
	if err != nil {
		return nil, s.refused(ctx, "Publish", err)
	}
	return connect.NewResponse(&ledgerv1.PublishResponse{EventIds: ids}), nil
}

func pathOf(i int) string { return fmt.Sprintf("events[%d]", i) }

// rawOf is an event as it is saved, with its id, if the caller may publish it. The path says where it stands in the request.
func (s publishing) rawOf(ctx context.Context, e *ledgerv1.Event, path string) (*spi.RawEvent, error) {
	if e == nil {
		return nil, invalid("%s is missing", path)
	}
	if !callerOf(ctx).MayPublish(e.GetEventType()) {
		return nil, connect.NewError(connect.CodePermissionDenied, fmt.Errorf("%s.eventType: %s may not publish %.128q", path,
			callerOf(ctx).Name, e.GetEventType()))
	}
	payload := bytes.TrimSpace(e.GetPayload())
	switch {
	case len(payload) == 0 || payload[0] != '{':
		return nil, invalid("%s.payload must be a JSON object", path)
	case !utf8.Valid(payload):
		return nil, invalid("%s.payload is not valid UTF-8", path)
	case e.GetTenantId() < 0:
		return nil, invalid("%s.tenantId must not be negative", path)
	case e.GetSchemaVersion() < 0:
		return nil, invalid("%s.schemaVersion must not be negative", path)
	}
	if err := checkKeyedID(e, path); err != nil {
		return nil, err
	}
	raw := &spi.RawEvent{
		ID: e.GetEventId(), Type: e.GetEventType(), AggregateType: e.GetAggregateType(), AggregateID: e.GetAggregateId(),
		Key: e.GetIdempotencyKey(), Version: int(e.GetSchemaVersion()), Payload: payload,
	}
	switch {
	case raw.ID != "":
	case raw.Key != "":
		raw.ID = outbox.EventID(e.GetTenantId(), raw.Type, raw.Key)
	default:
		id, err := uuid.NewV7()
		if err != nil {
			return nil, s.failed(ctx, "Publish", err)
		}
		raw.ID = id.String()
	}
	return raw, nil
}

// withOptions adds tenant and metadata.
func withOptions(raw *spi.RawEvent, e *ledgerv1.Event) bus.Event {
	opts := []outbox.Option{outbox.Tenant(e.GetTenantId(), 0)}
	for k, v := range e.GetMetadata() {
		opts = append(opts, outbox.Meta(k, v))
	}
	return outbox.With(raw, opts...)
}

// refused is the error of a Save: the caller's if the event is not valid, or was refused here.
func (s publishing) refused(ctx context.Context, call string, err error) error {
	if refused, ok := errors.AsType[*connect.Error](err); ok {
		return refused
	}
	if errors.Is(err, outbox.ErrInvalidEvent) {
		return connect.NewError(connect.CodeInvalidArgument, err)
	}
	return s.failed(ctx, call, err)
}
