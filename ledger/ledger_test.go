package ledger_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/ledger"
	"github.com/bluecone-go/bluecone/outbox"
)

// An event is published once, delivered with its numbers as they were sent, and SENT when it is acknowledged.
func TestPublishFetchAck(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *bun.DB) {
		i := serve(t, db, ledger.Config{})
		body := `{"events":[{"eventType":"order.paid","aggregateType":"ORDER","aggregateId":"1","payload":{"n":12345678901234567890,"f":1.50},` +
			`"idempotencyKey":"order:1:paid","tenantId":7,"metadata":{"userId":"9"}}]}`
		first := i.ok("shop-token", "Publish", body)
		require.Equal(t, first, i.ok("shop-token", "Publish", body), "the same id again")
		d := i.fetch()[0]
		event := d["event"].(map[string]any) //nolint:forcetypeassert // the answer of the contract
		require.Equal(t, json.Number("12345678901234567890"), event["payload"].(map[string]any)["n"])
		require.Equal(t, json.Number("7"), event["tenantId"])
		require.Equal(t, json.Number("1"), d["attempt"])
		require.Equal(t, "", event["checkUrl"], "every field is present")
		until, err := time.Parse(time.RFC3339Nano, d["leaseUntil"].(string))
		require.NoError(t, err)
		require.Equal(t, time.UTC, until.Location())
		ack := js(t, map[string]any{"acks": []any{
			map[string]any{"consumeToken": d["consumeToken"], "outcome": "SUCCESS", "result": map[string]any{"points": 5}},
			map[string]any{"consumeToken": "bm90aGluZw", "outcome": "SUCCESS"},
		}})
		got := i.call("points-token", "Ack", ack)
		require.JSONEq(t, `{"states":[{"state":"SUCCESS","error":null},`+
			`{"state":"","error":{"code":"not_found","message":"consumeToken: there is no such token"}}]}`, got.text)
		id := first["eventIds"].([]any)[0].(string) //nolint:forcetypeassert // the answer of the contract
		require.JSONEq(t, `{"status":"SENT","consumers":[{"consumer":"PointsConsumer","status":"SUCCESS","attempts":1,"result":{"points":5},`+
			`"error":""}]}`, i.call("points-token", "QueryConsumption", `{"eventId":"`+id+`"}`).text)
		require.JSONEq(t, `{"pending":0,"oldestAge":"0s","dead":0}`, i.call("points-token", "QueryLag", `{"consumer":"PointsConsumer"}`).text)
		done := i.ok("points-token", "BeginConsume", `{"consumer":"PointsConsumer","eventId":"`+id+`"}`)
		require.Equal(t, "ALREADY_DONE", done["decision"])
		require.Equal(t, map[string]any{"points": json.Number("5")}, done["result"])
	})
}

// An eventId that was published is known while its key is kept, also when retention has removed the event.
func TestPublishedIdIsKnownWhenItsEventHasGone(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *bun.DB) {
		ob, err := outbox.New(db, outbox.Config{})
		require.NoError(t, err)
		retention, err := outbox.NewRetention(ob, outbox.RetentionConfig{})
		require.NoError(t, err)
		i := serve(t, db, ledger.Config{})
		ids := []string{"order:7:paid", "0198c0de-0000-7000-8000-000000000001"}
		for _, id := range ids {
			require.Equal(t, id, i.publish("7", id))
			d := i.fetch()
			require.Len(t, d, 1)
			i.ok("points-token", "FinishConsume", js(t, map[string]any{"consumeToken": d[0]["consumeToken"], "outcome": "SUCCESS"}))
		}
		testdb.Exec(t, db, "UPDATE bc_outbox_event SET created_at = '2001-01-01 00:00:00.000000', sent_at = '2001-01-01 00:00:00.000000'")
		_, err = retention.RunNow(t.Context())
		require.NoError(t, err)
		require.Zero(t, testdb.Count(t, db, "SELECT COUNT(*) FROM bc_outbox_event"))
		for _, id := range ids {
			require.Equal(t, id, i.publish("7", id), "the same id again")
		}
		require.Zero(t, testdb.Count(t, db, "SELECT COUNT(*) FROM bc_outbox_event"), "and nothing is saved")
		require.Equal(t, 2, testdb.Count(t, db, "SELECT COUNT(*) FROM bc_event_key WHERE removed_at IS NOT NULL"))
	})
}

// Two instances hand out the events of an aggregate one after the other, and each once.
func TestTwoInstancesKeepTheOrder(t *testing.T) {
	t.Parallel()
	for _, name := range testdb.Servers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := testdb.DSN(t, name)
			one := serve(t, migrated(t, dsn), ledger.Config{})
			two := serve(t, testdb.OpenDSN(t, dsn), ledger.Config{})
			const events = 12
			for n := range events {
				one.publish([]string{"A", "B"}[n%2], strings.Repeat("x", n+1))
			}
			seen := map[string][]string{}
			for total := 0; total < events; {
				for _, i := range []*instance{one, two} {
					if total == events {
						break
					}
					for _, d := range i.fetch() {
						event := d["event"].(map[string]any) //nolint:forcetypeassert // the answer of the contract
						order, id := event["aggregateId"].(string), event["eventId"].(string)
						seen[order] = append(seen[order], id)
						total++
						got := two.ok("points-token", "FinishConsume", js(t, map[string]any{"consumeToken": d["consumeToken"], "outcome": "SUCCESS"}))
						require.Equal(t, "SUCCESS", got["state"])
					}
				}
			}
			for _, ids := range seen {
				require.Len(t, ids, events/2)
				require.IsIncreasing(t, ids)
			}
		})
	}
}

// Reservations are invisible until they are confirmed, end once, and answer the same when a call is repeated.
func TestReservations(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *bun.DB) {
		i := serve(t, db, ledger.Config{})
		reserve := func(id string) string {
			got := i.ok("shop-token", "Reserve", `{"event":{"eventType":"order.paid","aggregateType":"ORDER","aggregateId":"1",`+
				`"payload":{"a":1},"eventId":"`+id+`"},"ttl":"60s"}`)
			require.Equal(t, id, got["eventId"])
			return got["reservationToken"].(string) //nolint:forcetypeassert // the answer of the contract
		}
		state := func(method, token string) string {
			got := i.ok("shop-token", method, `{"reservationToken":"`+token+`"}`)
			return got["state"].(string) //nolint:forcetypeassert // the answer of the contract
		}
		kept, given := reserve("kept"), reserve("given")
		require.Equal(t, kept, reserve("kept"), "the same token again")
		require.Equal(t, "PREPARED", state("QueryReservation", kept))
		require.Equal(t, "UNKNOWN", state("QueryReservation", "nobody"))
		require.Equal(t, "CANCELED", state("Cancel", given))
		require.Equal(t, "CANCELED", state("Cancel", given))
		require.Equal(t, "failed_precondition", i.refused("shop-token", "Confirm", `{"reservationToken":"`+given+`"}`))
		require.Equal(t, "permission_denied", i.refused("rival-token", "Confirm", `{"reservationToken":"`+kept+`"}`))
		require.Equal(t, "not_found", i.refused("shop-token", "Confirm", `{"reservationToken":"nobody"}`))
		i.publish("1", "after-reserve")
		require.Equal(t, "CONFIRMED", state("Confirm", kept))
		require.Equal(t, "CONFIRMED", state("Confirm", kept))
		require.Equal(t, "failed_precondition", i.refused("shop-token", "Cancel", `{"reservationToken":"`+kept+`"}`))
		for _, want := range []string{"after-reserve", "kept"} { // it took its place when it was confirmed
			d := i.fetch()[0]
			require.Equal(t, want, d["event"].(map[string]any)["eventId"])
			i.ok("points-token", "FinishConsume", js(t, map[string]any{"consumeToken": d["consumeToken"], "outcome": "SUCCESS"}))
		}
	})
}

// Whoever may not do something, or sends something wrong, gets an error of its kind, and nothing changes.
func TestRefusals(t *testing.T) {
	t.Parallel()
	i := serve(t, testdb.Open(t, "sqlite"), ledger.Config{})
	event := func(more string) string {
		return `{"events":[{"eventType":"order.paid","aggregateType":"ORDER","aggregateId":"1","payload":{"a":1}` + more + `}]}`
	}
	i.publish("1", "e1")
	d := i.fetch()[0]
	token, _ := d["consumeToken"].(string)
	long, fetch := strings.Repeat("x", 300<<10), `{"consumer":"PointsConsumer","eventTypes":["order.paid"],`
	reserve := `{"event":{"eventType":"order.paid","payload":{}},"ttl":`
	for name, c := range map[string]struct{ token, method, body, code string }{ //nolint:paralleltest // of one instance, in turn
		"no token":             {"", "Publish", event(""), "unauthenticated"},
		"a wrong token":        {"wrong-token", "Publish", event(""), "unauthenticated"},
		"a foreign type":       {"shop-token", "Publish", strings.Replace(event(""), "order.paid", "user.made", 1), "permission_denied"},
		"a foreign consumer":   {"shop-token", "Fetch", `{"consumer":"PointsConsumer","eventTypes":["order.paid"]}`, "permission_denied"},
		"an unknown field":     {"shop-token", "Publish", event(`,"colour":"red"`), "invalid_argument"},
		"a wrong type":         {"shop-token", "Publish", event(`,"tenantId":"7"`), "invalid_argument"},
		"a payload of a list":  {"shop-token", "Publish", strings.Replace(event(""), `{"a":1}`, `[1]`, 1), "invalid_argument"},
		"no events":            {"shop-token", "Publish", `{}`, "invalid_argument"},
		"not JSON":             {"shop-token", "Publish", `{"events":`, "invalid_argument"},
		"a long id":            {"shop-token", "Publish", event(`,"eventId":"` + strings.Repeat("x", 65) + `"`), "invalid_argument"},
		"a large payload":      {"shop-token", "Publish", strings.Replace(event(""), `1}`, `"`+long+`"}`, 1), "invalid_argument"},
		"a time to live of 0":  {"shop-token", "Reserve", reserve + `"0s"}`, "invalid_argument"},
		"one of a year":        {"shop-token", "Reserve", reserve + `"31536000s"}`, "invalid_argument"},
		"one that is a number": {"shop-token", "Reserve", reserve + `30}`, "invalid_argument"},
		"a host elsewhere": {"shop-token", "Reserve", `{"event":{"eventType":"order.paid","aggregateType":"O","aggregateId":"1","payload":{},` +
			`"checkUrl":"http://192.0.2.1/x"},"ttl":"5s"}`, "invalid_argument"},
		"a token of another": {"rival-token", "FinishConsume", `{"consumeToken":"` + token + `","outcome":"SUCCESS"}`, "permission_denied"},
		"no such token":      {"points-token", "Heartbeat", `{"consumeToken":"AAAA"}`, "not_found"},
		"no such outcome":    {"points-token", "FinishConsume", `{"consumeToken":"` + token + `","outcome":"FINE"}`, "invalid_argument"},
		"no such event":      {"points-token", "BeginConsume", `{"consumer":"PointsConsumer","eventId":"nobody"}`, "not_found"},
		"too much at once":   {"points-token", "Fetch", fetch + `"max":501}`, "invalid_argument"},
		"too long a wait":    {"points-token", "Fetch", fetch + `"wait":"61s"}`, "invalid_argument"},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.code, i.refused(c.token, c.method, c.body))
		})
	}
	require.Equal(t, "IN_PROGRESS", i.ok("points-token", "BeginConsume", `{"consumer":"PointsConsumer","eventId":"e1"}`)["decision"])
	require.Equal(t, "SUCCESS", i.ok("points-token", "FinishConsume", `{"consumeToken":"`+token+`","outcome":"SUCCESS"}`)["state"])
}
