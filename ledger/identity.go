package ledger

import (
	"context"
	"fmt"

	"connectrpc.com/connect"
	"github.com/google/uuid"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/spi"
	"github.com/bluecone-go/bluecone/ledger/ledgerv1"
	"github.com/bluecone-go/bluecone/outbox"
)

// keyedVersion is the version of the UUIDs that are ids of keyed events. Everybody can compute them.
const keyedVersion = 5

// isKeyedID reports whether an id may be that of a keyed event.
func isKeyedID(id string) bool {
	parsed, err := uuid.Parse(id)
	return err == nil && parsed.Version() == keyedVersion
}

// checkKeyedID refuses the id of a keyed event, unless it is this one's own: the keyed event would be taken for a repetition.
func checkKeyedID(e *ledgerv1.Event, path string) error {
	id, key := e.GetEventId(), e.GetIdempotencyKey()
	if !isKeyedID(id) || key != "" && id == outbox.EventID(e.GetTenantId(), e.GetEventType(), key) {
		return nil
	}
	return invalid("%s.eventId is a UUID of version 5, as the ids of keyed events are, and not that of this event: "+
		"send its idempotencyKey instead, or another id", path)
}

func identityOf(e *ledgerv1.Event) spi.EventIdentity {
	return spi.EventIdentity{
		Type: e.GetEventType(), AggregateType: e.GetAggregateType(), AggregateID: e.GetAggregateId(), TenantID: e.GetTenantId(),
	}
}

// checkIDs refuses events whose ids other events have, as tx sees them: such an event is not saved. The id of a keyed event says what it
// is. The path says where an event stands in the request.
func (s publishing) checkIDs(ctx context.Context, tx bun.Tx, events []*ledgerv1.Event, path func(i int) string) error {
	var ids []string
	for _, e := range events {
		if id := e.GetEventId(); id != "" && !isKeyedID(id) {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	stored, err := spi.EventIdentities(ctx, s.db, tx, ids)
	if err != nil {
		return err
	}
	for i, e := range events {
		if of, found := stored[e.GetEventId()]; found && of != identityOf(e) {
			return idTaken(path(i))
		}
	}
	return nil
}

func idTaken(path string) error {
	return connect.NewError(connect.CodeAlreadyExists, fmt.Errorf("%s.eventId is that of another event: "+
		"its type, aggregate or tenant is not that of this one", path))
}

// checkReserved refuses an event whose id another one is reserved under.
func checkReserved(e *ledgerv1.Event, of spi.Reservation) error {
	if e.GetEventId() == "" || isKeyedID(e.GetEventId()) {
		return nil
	}
	var reserved ledgerv1.Event
	if err := (jsonCodec{}).Unmarshal([]byte(of.Event), &reserved); err != nil {
		return err
	}
	if identityOf(&reserved) != identityOf(e) {
		return idTaken("event")
	}
	return nil
}
