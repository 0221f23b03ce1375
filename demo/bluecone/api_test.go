package main

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The HTTP API, to the letter of its contract.

func TestOrderLifeAndBalances(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, dsn string) {
		s := serveOn(t, dsn, nil)
		u := s.place()
		require.Equal(t, map[string]any{
			"orderId": u.order, "userId": u.user, "status": "WAIT_PAY", "totalCents": 5000.0, "walletCents": 1000.0, "points": 200.0,
			"couponId": u.coupon, "payableCents": 3500.0,
		}, s.get("/orders/"+u.order).body)
		s.quiet()
		require.Equal(t, locked, s.holdings(u.user))

		conflict := s.post("/orders/"+u.order+"/refund", `{"refundId":"r-1"}`)
		require.Equal(t, 409, conflict.status, "not PAID yet")
		require.NotEmpty(t, conflict.text("code"))
		require.NotEmpty(t, conflict.text("error"))
		for range 2 {
			require.Equal(t, map[string]any{"orderId": u.order, "status": "PAID"}, s.post("/orders/"+u.order+"/pay", `{"payNo":"p-1"}`).body)
		}
		require.Equal(t, 409, s.post("/orders/"+u.order+"/cancel", "").status, "PAID")
		s.quiet()
		require.Equal(t, afterPay, s.holdings(u.user))

		for range 2 {
			r := s.post("/orders/"+u.order+"/refund", `{"refundId":"r-1"}`)
			require.Equal(t, 200, r.status, r.body)
			require.Equal(t, "REFUNDED", r.text("status"))
		}
		require.Equal(t, 409, s.post("/orders/"+u.order+"/refund", `{"refundId":"r-2"}`).status)
		require.Equal(t, 409, s.post("/orders/"+u.order+"/cancel", "").status, "REFUNDED")
		s.quiet()
		require.Equal(t, refunded, s.holdings(u.user))

		timeline := s.get("/orders/" + u.order + "/timeline")
		var types []string
		for _, e := range timeline.at("events").([]any) {
			e := e.(map[string]any)
			types = append(types, e["eventType"].(string))
			require.Equal(t, "SENT", e["status"])
			require.Len(t, e["traceId"], 32)
			for _, d := range e["deliveries"].([]any) {
				d := d.(map[string]any)
				require.Equal(t, "SUCCESS", d["status"])
				for _, key := range []string{"consumer", "attempts", "error", "idempotencyKey", "result", "createdAt", "consumedAt", "traceId"} {
					require.Contains(t, d, key)
				}
			}
		}
		require.Equal(t, []string{"order.checkout_locked", "order.paid", "order.refunded"}, types)
		require.Equal(t, map[string]any{"NEW": 0.0, "SCHEDULED": 0.0, "DISPATCHING": 0.0, "SENT": 3.0, "FAILED": 0.0, "DEAD": 0.0},
			s.get("/stats").at("outbox"))
	})
}

func TestCancelGivesEverythingBack(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, dsn string) {
		s := serveOn(t, dsn, nil)
		u := s.place()
		s.quiet()
		for range 2 {
			r := s.post("/orders/"+u.order+"/cancel", "")
			require.Equal(t, 200, r.status)
			require.Equal(t, "CANCELED", r.text("status"))
		}
		require.Equal(t, 409, s.post("/orders/"+u.order+"/pay", `{"payNo":"p"}`).status)
		s.quiet()
		require.Equal(t, before, s.holdings(u.user))
	})
}

// A repetition with the same Idempotency-Key answers the first result, in another instance too.
func TestIdempotencyKeyAnswersTheFirstResult(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, dsn string) {
		a, b := serveOn(t, dsn, nil), serveOn(t, dsn, nil)
		body := `{"walletCents":10000,"points":500,"couponCents":[300,500]}`
		first := a.post("/users", body, "Idempotency-Key", "user-1")
		require.Equal(t, 201, first.status)
		require.Len(t, first.at("couponIds"), 2)
		again := b.post("/users", body, "Idempotency-Key", "user-1")
		require.Equal(t, first, again)
		require.NotEqual(t, first.body, a.post("/users", body, "Idempotency-Key", "user-2").body)
		order := `{"userId":"` + first.text("userId") + `","totalCents":5000,"walletCents":10000}`
		require.Equal(t, 400, a.post("/orders", order).status, "payable would be negative")
		order = strings.Replace(order, "10000", "1000", 1)
		placed := a.post("/orders", order, "Idempotency-Key", "order-1")
		require.Equal(t, 201, placed.status)
		require.Equal(t, placed, b.post("/orders", order, "Idempotency-Key", "order-1"))
		a.quiet()
		require.InDelta(t, 1, a.get("/stats").at("outbox", "SENT"), 0, "one order, one event")
	})
}

// Every refusal is JSON with a text and a code, and the status of the contract.
func TestRefusals(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, dsn string) {
		s := serveOn(t, dsn, nil)
		u := s.place()
		other := s.user()
		s.quiet()
		long := strings.Repeat("x", 300)
		for name, c := range map[string]struct {
			method, path, body string
			status             int
		}{
			"unknown path":            {"GET", "/nowhere", "", 404},
			"wrong method":            {"DELETE", "/users", "", 405},
			"unknown order":           {"GET", "/orders/nonsense", "", 404},
			"pay unknown order":       {"POST", "/orders/nonsense/pay", `{"payNo":"1"}`, 404},
			"timeline of unknown":     {"GET", "/orders/nonsense/timeline", "", 404},
			"unknown user":            {"GET", "/users/nonsense/assets", "", 404},
			"not json":                {"POST", "/users", `{"walletCents":`, 400},
			"unknown field":           {"POST", "/users", `{"wallet":1}`, 400},
			"two values":              {"POST", "/users", `{} {}`, 400},
			"wrong type":              {"POST", "/users", `{"walletCents":"1"}`, 400},
			"negative wallet":         {"POST", "/users", `{"walletCents":-1}`, 400},
			"number too large":        {"POST", "/users", `{"walletCents":99999999999999999999}`, 400},
			"no total":                {"POST", "/orders", `{"userId":"` + u.user + `"}`, 400},
			"negative points":         {"POST", "/orders", `{"userId":"` + u.user + `","totalCents":100,"points":-5}`, 400},
			"unknown buyer":           {"POST", "/orders", `{"userId":"nobody","totalCents":100}`, 404},
			"not enough in wallet":    {"POST", "/orders", `{"userId":"` + u.user + `","totalCents":999999,"walletCents":999999}`, 409},
			"not enough points":       {"POST", "/orders", `{"userId":"` + u.user + `","totalCents":999999,"points":9999}`, 409},
			"coupon in use":           {"POST", "/orders", `{"userId":"` + u.user + `","totalCents":5000,"couponId":"` + u.coupon + `"}`, 409},
			"coupon of somebody else": {"POST", "/orders", `{"userId":"` + u.user + `","totalCents":5000,"couponId":"` + other.coupon + `"}`, 409},
			"no pay number":           {"POST", "/orders/" + u.order + "/pay", `{}`, 400},
			"long pay number":         {"POST", "/orders/" + u.order + "/pay", `{"payNo":"` + long + `"}`, 400},
			"no refund id":            {"POST", "/orders/" + u.order + "/refund", `{}`, 400},
			"faults are off":          {"POST", "/faults", `{}`, 404},
			"jobs are off":            {"POST", "/jobs/lock_timeout_reaper/run", "", 404},
			"lose event is off":       {"POST", "/orders/" + u.order + "/pay", `{"payNo":"1","loseEvent":true}`, 400},
			"sql":                     {"GET", "/orders/1'%20OR%20'1'='1", "", 404},
		} {
			r, err := try(s.base, c.method, c.path, c.body)
			require.NoError(t, err, name)
			require.Equal(t, c.status, r.status, "%s: %v", name, r.body)
			require.NotEmpty(t, r.text("error"), name)
			require.NotEmpty(t, r.text("code"), name)
		}
		require.Equal(t, locked, s.holdings(u.user), "nothing has moved")
	})
}

func TestFaultsAndHealthAndMetrics(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, dsn string) {
		s := serveOn(t, dsn, nil, "--faults")
		for _, path := range []string{"/livez", "/readyz"} {
			s.eventually(func() bool { return s.get(path).status == 200 }, path)
		}
		s.eventually(func() bool {
			r := s.get("/readyz")
			checks, _ := r.body["checks"].([]any)
			return len(checks) == 3 && fmt.Sprint(checks[2]) == "map[name:publisher ok:true says:It takes events.]"
		}, "the probe looks for the publisher")
		require.Equal(t, 400, s.post("/faults", `{"consumer":"Nobody","mode":"error"}`).status)
		require.Equal(t, 400, s.post("/faults", `{"consumer":"PointsConsumer","mode":"sulk"}`).status)
		require.Equal(t, 404, s.post("/jobs/nonsense/run", "").status)
		require.Equal(t, 200, s.post("/faults", `{"consumer":"PointsConsumer","mode":"permanent"}`).status)
		u := s.place()
		s.eventually(func() bool { return s.get("/stats").at("deliveries", "DEAD") == 1.0 }, "one delivery is DEAD")
		s.quiet()
		got := s.holdings(u.user)
		require.InDelta(t, 1000, got.frozen, 0, "the others are done")
		require.Equal(t, "LOCKED", got.coupon)
		require.Equal(t, 409, s.post("/orders/"+u.order+"/pay", `{"payNo":"1"}`).status, "a freeze has failed for good")
		require.Equal(t, 200, s.post("/faults", `{"consumer":"PointsConsumer","mode":"off"}`).status)
		require.Equal(t, 200, s.post("/orders/"+u.order+"/cancel", "").status, "it can be canceled")
		s.quiet()
		require.Equal(t, before, s.holdings(u.user))

		res, err := client.Get(s.base + "/metrics")
		require.NoError(t, err)
		defer res.Body.Close()
		require.Equal(t, http.StatusOK, res.StatusCode)
		text, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		for _, metric := range []string{
			"outbox_event_created_total", "outbox_event_sent_total", "outbox_event_dead_total", "outbox_event_pending",
			"outbox_event_oldest_age_seconds",
			"consumer_event_consumed_total", "consumer_event_failed_total", "consumer_event_latency_seconds_bucket",
			"consumer_handler_duration_seconds_bucket", "consumer_lag",
		} {
			require.True(t, strings.Contains(string(text), metric), metric)
		}
	})
}
