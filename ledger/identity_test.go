package ledger_test

import (
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/ledger"
	"github.com/bluecone-go/bluecone/ledger/ledgerv1"
	"github.com/bluecone-go/bluecone/outbox"
)

func eventOf(eventType, order, id string) *ledgerv1.Event {
	return &ledgerv1.Event{EventType: eventType, AggregateType: "ORDER", AggregateId: order, Payload: []byte(`{}`), EventId: id}
}

func publishAll(i *instance, events ...*ledgerv1.Event) ([]string, error) {
	got, err := i.client("").Publish(i.t.Context(), &ledgerv1.PublishRequest{Events: events})
	return got.GetEventIds(), err
}

// The ids of keyed events can be computed by everybody: nobody else may send one, or the keyed event would be lost.
func TestAnIDOfAKeyedEventIsItsOwn(t *testing.T) {
	t.Parallel()
	i := serve(t, testdb.Open(t, "sqlite"), ledger.Config{Authorizer: ledger.Anybody})
	keyed := outbox.EventID(7, "order.paid", "order:1:paid")
	other := uuid.NewSHA1(uuid.NameSpaceURL, []byte("mine")).String()
	for _, id := range []string{keyed, strings.ToUpper(keyed), "urn:uuid:" + keyed, strings.ReplaceAll(keyed, "-", ""), other} {
		_, err := publishAll(i, eventOf("audit.seen", "1", "fine"), eventOf("audit.seen", "1", id))
		refusedAs(t, err, connect.CodeInvalidArgument, "events[1].eventId")
		_, err = i.client("").Reserve(t.Context(), &ledgerv1.ReserveRequest{Event: eventOf("audit.seen", "1", id), Ttl: durationpb.New(1e9)})
		refusedAs(t, err, connect.CodeInvalidArgument, "event.eventId")
	}
	mine := eventOf("order.paid", "1", keyed)
	mine.TenantId, mine.IdempotencyKey = 7, "order:1:paid"
	for range 2 {
		ids, err := publishAll(i, mine)
		require.NoError(t, err)
		require.Equal(t, []string{keyed}, ids)
	}
	mine.TenantId = 8
	_, err := publishAll(i, mine)
	refusedAs(t, err, connect.CodeInvalidArgument, "events[0].eventId")
}

// An id that another event has is told, whichever call brings it: the event would be lost otherwise. The same event again is the same.
func TestAnIDThatAnotherEventHasIsTold(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *bun.DB) {
		i := serve(t, db, ledger.Config{Authorizer: ledger.Anybody})
		c := i.client("")
		_, err := publishAll(i, eventOf("audit.seen", "1", "1"))
		require.NoError(t, err)
		ids, err := publishAll(i, eventOf("audit.seen", "1", "1"))
		require.NoError(t, err)
		require.Equal(t, []string{"1"}, ids)
		tenant := eventOf("audit.seen", "1", "1")
		tenant.TenantId = 3
		for _, other := range []*ledgerv1.Event{eventOf("order.paid", "1", "1"), eventOf("audit.seen", "2", "1"), tenant} {
			_, err = publishAll(i, eventOf("order.paid", "9", "fresh"), other)
			refusedAs(t, err, connect.CodeAlreadyExists, "events[1].eventId")
			_, err = c.Reserve(t.Context(), &ledgerv1.ReserveRequest{Event: other, Ttl: durationpb.New(10e9)})
			refusedAs(t, err, connect.CodeAlreadyExists, "event.eventId")
		}
		_, err = publishAll(i, eventOf("order.paid", "1", "twice"), eventOf("order.refunded", "1", "twice"))
		refusedAs(t, err, connect.CodeAlreadyExists, "events[1].eventId")
		for _, id := range []string{"fresh", "twice"} {
			_, err = c.QueryConsumption(t.Context(), &ledgerv1.QueryConsumptionRequest{EventId: id})
			refusedAs(t, err, connect.CodeNotFound, "eventId")
		}

		reserve := &ledgerv1.ReserveRequest{Event: eventOf("order.paid", "1", "kept"), Ttl: durationpb.New(60e9)}
		kept, err := c.Reserve(t.Context(), reserve)
		require.NoError(t, err)
		again, err := c.Reserve(t.Context(), reserve)
		require.NoError(t, err)
		require.Equal(t, kept.GetReservationToken(), again.GetReservationToken())
		reserve.Event = eventOf("order.refunded", "1", "kept")
		_, err = c.Reserve(t.Context(), reserve)
		refusedAs(t, err, connect.CodeAlreadyExists, "event.eventId")
		_, err = publishAll(i, eventOf("audit.seen", "1", "kept"))
		require.NoError(t, err)
		_, err = c.Confirm(t.Context(), &ledgerv1.ConfirmRequest{ReservationToken: kept.GetReservationToken()})
		refusedAs(t, err, connect.CodeAlreadyExists, "eventId")
		state, err := c.QueryReservation(t.Context(), &ledgerv1.QueryReservationRequest{ReservationToken: kept.GetReservationToken()})
		require.NoError(t, err)
		require.Equal(t, "PREPARED", state.GetState())
	})
}
