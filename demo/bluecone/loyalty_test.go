package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/demo/broker"
	"github.com/bluecone-go/bluecone/internal/testbroker"
	"github.com/bluecone-go/bluecone/relay"
)

// message is an event as the monolith sends it.
func message(eventType, kind, id string, payload any) relay.Message {
	body, _ := json.Marshal(payload) // maps of texts and numbers
	eventID := uuid.NewString()
	return relay.Message{
		ID: eventID, Type: eventType, AggregateType: kind, AggregateID: id, ContentType: "application/json", Body: body,
		Attributes: map[string]string{
			"specversion": "1.0", "id": eventID, "source": "/bluecone/bluecone", "type": eventType, "subject": kind + "/" + id, "schemaversion": "1",
		},
	}
}

func paidMessage(order, user string, cents any) relay.Message {
	return message("order.paid", "ORDER", order, map[string]any{"orderId": order, "userId": user, "totalCents": cents})
}

// The loyalty service, to the letter of its contract, on every database: what it lands, counts and keeps.
func TestLoyaltyService(t *testing.T) {
	t.Parallel()
	redis := testbroker.Start(t, "redis")
	eachDialect(t, func(t *testing.T, dsn string) {
		from := brokerURL(t, "redis", redis)
		s := startServer(t, nil, "loyalty", "--addr", "127.0.0.1:0", "--dsn", dsn, "--inbox", from)
		other := startServer(t, nil, "loyalty", "--addr", "127.0.0.1:0", "--dsn", dsn, "--inbox", from)
		p, err := broker.NewPublisher(from)
		require.NoError(t, err)
		defer func() { require.NoError(t, p.Close()) }()
		publish := func(m relay.Message) {
			require.Equal(t, []error{nil}, p.Publish(t.Context(), []relay.Message{m}))
		}
		stats := func(landed, duplicates, open, dead int) {
			t.Helper()
			want := fmt.Sprintf(`map[dead:%d duplicates:%d landed:%d open:%d]`, dead, duplicates, landed, open)
			for _, n := range []*server{s, other} {
				n.eventually(func() bool { return fmt.Sprint(n.get("/stats").body) == want }, want)
			}
		}
		stamps := func(user string, n int) {
			t.Helper()
			require.Equal(t, map[string]any{"stamps": float64(n)}, other.get("/users/"+user+"/stamps").body)
		}
		stamps("anybody", 0)

		first := paidMessage("o1", "u1", 5999)
		publish(first)
		stats(1, 0, 0, 0)
		stamps("u1", 5)
		publish(first) // again
		publish(paidMessage("o2", "u1", 999))
		stats(2, 1, 0, 0)
		stamps("u1", 5)

		// The refund comes first, and waits.
		publish(message("order.refunded", "REFUND", "r3", map[string]any{"orderId": "o3", "refundId": "r3"}))
		stats(3, 1, 1, 0)
		publish(paidMessage("o3", "u3", 7000))
		stats(4, 1, 0, 0)
		stamps("u3", 0)
		publish(message("order.refunded", "REFUND", "r1", map[string]any{"orderId": "o1", "refundId": "r1"}))
		stats(5, 1, 0, 0)
		stamps("u1", 0)

		// What is not for this service, what nobody can read, and what makes no sense.
		publish(message("order.canceled", "ORDER", "o4", map[string]any{"orderId": "o4"}))
		unreadable := paidMessage("o5", "u5", 1000)
		unreadable.Body = []byte("{")
		publish(unreadable)
		publish(paidMessage("o6", "u6", "a lot"))
		publish(paidMessage("o7", "u7", -1))
		publish(paidMessage("", "u8", 1000))
		publish(paidMessage("o9", strings.Repeat("x", 100), 1000))
		stats(10, 1, 0, 5)

		for path, status := range map[string]int{"/readyz": 200, "/livez": 200, "/nothing": 404, "/users/u1": 404, "/users/a%00b/stamps": 404} {
			require.Equal(t, status, s.get(path).status, path)
		}
		r := s.post("/stats", "")
		require.Equal(t, 405, r.status)
		require.NotEmpty(t, r.text("error"))
		require.NotEmpty(t, r.text("code"))
	})
}
