package ledger_test

import (
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/ledger"
	"github.com/bluecone-go/bluecone/ledger/ledgerv1"
)

// refusedAs asks that a call was refused as the caller's mistake, in words that name it.
func refusedAs(t *testing.T, err error, code connect.Code, names string) {
	t.Helper()
	require.Error(t, err)
	require.Equal(t, code, connect.CodeOf(err), err)
	require.ErrorContains(t, err, names)
}

// A result that is no JSON is refused, whatever the encoding of the call: no database sees it, and the lease stays.
func TestAResultThatIsNoJSONIsRefused(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *bun.DB) {
		i := serve(t, db, ledger.Config{})
		c := i.client("points-token") // it sends protobuf
		i.publish("1", "e1")
		held, _ := i.fetch()[0]["consumeToken"].(string)
		for _, result := range []string{`{"points":`, "done", " ", "\"\xff\"", "\"\x00\"", `{"a":1},"forged":{}`, strings.Repeat("[", 9000)} {
			finish := &ledgerv1.FinishConsumeRequest{ConsumeToken: held, Outcome: "SUCCESS", Result: []byte(result)}
			_, err := c.FinishConsume(t.Context(), finish)
			refusedAs(t, err, connect.CodeInvalidArgument, "result")
			got, err := c.Ack(t.Context(), &ledgerv1.AckRequest{Acks: []*ledgerv1.FinishConsumeRequest{finish}})
			require.NoError(t, err)
			require.Equal(t, "invalid_argument", got.GetStates()[0].GetError().GetCode())
			require.Contains(t, got.GetStates()[0].GetError().GetMessage(), "result")
		}
		require.Equal(t, "invalid_argument", i.refused("points-token", "FinishConsume",
			`{"consumeToken":"`+held+`","outcome":"SUCCESS","result":"`+"\xff"+`"}`))
		good := &ledgerv1.FinishConsumeRequest{ConsumeToken: held, Outcome: "SUCCESS", Result: []byte(`{"n":1}`)}
		got, err := c.FinishConsume(t.Context(), good)
		require.NoError(t, err)
		require.Equal(t, "SUCCESS", got.GetState())
		done := i.ok("points-token", "BeginConsume", `{"consumer":"PointsConsumer","eventId":"e1"}`)
		require.JSONEq(t, `{"n":1}`, js(t, done["result"]))
	})
}

// Text that a database would not take is the caller's mistake, never "call again".
func TestTextThatNoDatabaseTakesIsRefused(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *bun.DB) {
		i := serve(t, db, ledger.Config{Authorizer: ledger.Anybody})
		c := i.client("")
		event := func(payload string) *ledgerv1.Event {
			return &ledgerv1.Event{EventType: "order.paid", AggregateType: "ORDER", AggregateId: "1", Payload: []byte(payload)}
		}
		for _, payload := range []string{"{\"a\":\"\xff\"}", `{"a":`, `{}{}`, "{\"a\":\"\x00\"}"} {
			_, err := c.Publish(t.Context(), &ledgerv1.PublishRequest{Events: []*ledgerv1.Event{event(payload)}})
			refusedAs(t, err, connect.CodeInvalidArgument, "payload")
		}
		_, err := c.Fetch(t.Context(), &ledgerv1.FetchRequest{Consumer: "a\x00b", EventTypes: []string{"order.paid"}})
		refusedAs(t, err, connect.CodeInvalidArgument, "consumer")
		_, err = c.Fetch(t.Context(), &ledgerv1.FetchRequest{Consumer: "C", EventTypes: []string{"order.paid\x00"}})
		refusedAs(t, err, connect.CodeInvalidArgument, "eventTypes[0]")
		_, err = c.BeginConsume(t.Context(), &ledgerv1.BeginConsumeRequest{Consumer: "C", EventId: "\x00"})
		refusedAs(t, err, connect.CodeInvalidArgument, "eventId")
		_, err = c.QueryConsumption(t.Context(), &ledgerv1.QueryConsumptionRequest{EventId: "\x00"})
		refusedAs(t, err, connect.CodeInvalidArgument, "eventId")
		for _, token := range []string{"", "\x00"} {
			got, err := c.QueryReservation(t.Context(), &ledgerv1.QueryReservationRequest{ReservationToken: token})
			require.NoError(t, err)
			require.Equal(t, "UNKNOWN", got.GetState())
		}
		_, err = c.Confirm(t.Context(), &ledgerv1.ConfirmRequest{ReservationToken: "\x00"})
		refusedAs(t, err, connect.CodeInvalidArgument, "reservationToken")
		require.Equal(t, "invalid_argument", i.refused("", "Publish", `{"events":[{"eventType":"order.paid","aggregateType":"ORDER",`+
			`"aggregateId":"`+"\xff"+`","payload":{}}]}`))
	})
}
