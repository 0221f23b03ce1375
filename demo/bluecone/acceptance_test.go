package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// The five acceptance criteria of the original design, each with real processes.

// 1: events saved by a process that was killed are delivered by the next one.
func TestAcceptance1_CrashRestart(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, dsn string) {
		doomed := serveOn(t, dsn, nil, "--no-publisher", "--node", "doomed")
		u := doomed.place("X-Request-Id", "req-crash")
		require.InDelta(t, 1, doomed.get("/stats").at("outbox", "NEW"), 0)
		require.Equal(t, before, doomed.holdings(u.user), "nothing is delivered yet")
		doomed.end(syscall.SIGKILL)

		next := serveOn(t, dsn, nil, "--node", "next", "--verbose")
		next.quiet()
		require.Equal(t, locked, next.holdings(u.user))
		events := next.get("/orders/" + u.order + "/timeline").at("events").([]any)
		require.Len(t, events, 1)
		event := events[0].(map[string]any)
		require.Equal(t, "SENT", event["status"])
		require.Len(t, event["deliveries"], 3)
		consumed := logLines(next.stderr.String(), "event consumed")
		require.Len(t, consumed, 3)
		for _, line := range consumed { // traceId and requestId of the request to the process that is no more
			require.Equal(t, event["traceId"], line["traceId"])
			require.Equal(t, "req-crash", line["requestId"])
			require.Equal(t, event["eventId"], line["eventId"])
		}
		require.Equal(t, 0, next.end(syscall.SIGTERM), "SIGTERM drains and exits 0")
	})
}

// 2: the payment callback comes twenty times at once, to two instances; assets move once.
func TestAcceptance2_DuplicateCallback(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, dsn string) {
		nodes := []*server{serveOn(t, dsn, nil), serveOn(t, dsn, nil)}
		u := nodes[0].place()
		var wg sync.WaitGroup
		replies := make([]reply, 20)
		errs := make([]error, 20)
		start := make(chan struct{})
		for i := range replies {
			wg.Go(func() {
				<-start
				replies[i], errs[i] = try(nodes[i%2].base, "POST", "/orders/"+u.order+"/pay", `{"payNo":"pay-1"}`)
			})
		}
		close(start)
		wg.Wait()
		for i, r := range replies {
			require.NoError(t, errs[i])
			require.Equal(t, 200, r.status, r.body)
			require.Equal(t, map[string]any{"orderId": u.order, "status": "PAID"}, r.body)
		}
		nodes[1].quiet()
		require.Equal(t, afterPay, nodes[0].holdings(u.user))
		events := nodes[0].get("/orders/" + u.order + "/timeline").at("events").([]any)
		require.Len(t, events, 2, "checkout_locked, and one order.paid")
	})
}

// 3: locks that are too old are released, balances come back, and the log says so.
func TestAcceptance3_LockTimeout(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, dsn string) {
		s := serveOn(t, dsn, []string{"BLUECONE_ASSET_LOCK_TIMEOUT_MINUTES=1s"}, "--faults")
		u := s.place()
		s.quiet()
		require.Equal(t, locked, s.holdings(u.user))
		released := 0.0
		s.eventually(func() bool {
			r := s.post("/jobs/lock_timeout_reaper/run", "")
			n, _ := r.at("report", "released").(float64)
			released += n
			return released == 3
		}, "all three locks are released")
		s.quiet()
		require.Equal(t, before, s.holdings(u.user))
		require.Len(t, logLines(s.stderr.String(), "lock released"), 3)
		require.Equal(t, "CANCELED", s.get("/orders/"+u.order).text("status"))
		require.Equal(t, 409, s.post("/orders/"+u.order+"/pay", `{"payNo":"pay-1"}`).status)
		events := s.get("/orders/" + u.order + "/timeline").at("events").([]any)
		require.Len(t, events, 2, "checkout_locked and canceled")
		for _, d := range (reply{body: events[1].(map[string]any)}).at("deliveries").([]any) {
			result := fmt.Sprint(d.(map[string]any)["result"])
			require.True(t, strings.Contains(result, "NO_FREEZE") || strings.Contains(result, "NO_LOCK"),
				"there is nothing left to give back: %v", d)
		}
	})
}

// A consumer that fails holds its own locks only. What the others have locked is released, and the order canceled.
func TestFailingConsumerHoldsNoLocksOfOthers(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, dsn string) {
		s := serveOn(t, dsn, []string{"BLUECONE_ASSET_LOCK_TIMEOUT_MINUTES=1s"}, "--faults")
		require.Equal(t, 200, s.post("/faults", `{"consumer":"PointsConsumer","mode":"error"}`).status)
		u := s.place()
		s.eventually(func() bool {
			require.Equal(t, 200, s.post("/jobs/lock_timeout_reaper/run", "").status)
			return s.get("/orders/"+u.order).text("status") == "CANCELED"
		}, "wallet and coupon are released")
		require.Equal(t, 200, s.post("/faults", `{"consumer":"PointsConsumer","mode":"off"}`).status)
		s.quiet()
		require.Equal(t, before, s.holdings(u.user))
		require.Equal(t, 409, s.post("/orders/"+u.order+"/pay", `{"payNo":"pay-1"}`).status)
	})
}

// 4: a paid order whose event was lost gets it back in full, and a late original changes nothing.
func TestAcceptance4_LostEvent(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, dsn string) {
		s := serveOn(t, dsn, nil, "--faults")
		u := s.place()
		s.quiet()
		require.Equal(t, 200, s.post("/orders/"+u.order+"/pay", `{"payNo":"pay-1","loseEvent":true}`).status)
		s.quiet()
		require.Equal(t, locked, s.holdings(u.user), "paid, but nobody knows")
		require.Equal(t, "PAID", s.get("/orders/"+u.order).text("status"))
		s.eventually(func() bool { // the fact must be older than the grace time
			r := s.post("/jobs/order_asset_consistency/run", "")
			return r.status == 200 && repaired(r, "order.paid") == 1
		}, "the check saves it")
		s.quiet()
		require.Equal(t, afterPay, s.holdings(u.user))
		require.Equal(t, 200, s.post("/orders/"+u.order+"/pay", `{"payNo":"pay-1"}`).status, "the late original")
		require.Zero(t, repaired(s.post("/jobs/order_asset_consistency/run", ""), "order.paid"), "a second run finds nothing")
		s.quiet()
		require.Equal(t, afterPay, s.holdings(u.user))
		require.Len(t, s.get("/orders/"+u.order+"/timeline").at("events"), 2)
	})
}

func repaired(r reply, check string) int {
	n, _ := r.at("report", check, "repaired").(float64)
	return int(n)
}

// span is one line of the span exporter.
type span struct {
	Name        string
	SpanContext struct{ TraceID, SpanID string }
	Parent      struct{ TraceID, SpanID string }
}

// 5: one trace from the request through outbox and consumers to the asset operation, on exported spans.
func TestAcceptance5_Trace(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, dsn string) {
		s := serveOn(t, dsn, nil, "--trace", "stdout")
		const traceID = "0af7651916cd43dd8448eb211c80319c"
		s.place("Traceparent", "00-"+traceID+"-b7ad6b7169203331-01")
		s.quiet()
		require.Equal(t, 0, s.end(syscall.SIGTERM))
		byID := make(map[string]span)
		for line := range strings.Lines(s.stdout.String()) {
			var sp span
			if json.Unmarshal([]byte(line), &sp) == nil && sp.SpanContext.TraceID == traceID {
				byID[sp.SpanContext.SpanID] = sp
			}
		}
		chains := make(map[string]bool)
		for _, sp := range byID {
			chain := sp.Name
			for p, ok := byID[sp.Parent.SpanID]; ok; p, ok = byID[p.Parent.SpanID] {
				chain = p.Name + " > " + chain
			}
			chains[chain] = true
		}
		for _, asset := range []string{"coupon.lock", "wallet.freeze", "points.freeze"} {
			require.True(t, chains["POST /orders > save order.checkout_locked > consume order.checkout_locked > "+asset], "%s in %v", asset, chains)
		}
	})
}

// The story is the main job. It plays every scenario on every database.
func TestStoryPassesOnEveryDatabase(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, dsn string) {
		code, stdout, stderr := program(t, nil, "--dsn", dsn)
		require.Equal(t, 0, code, "%s\n%s", stderr, stdout)
		require.Contains(t, stdout, " passed, 0 failed, in ")
		for _, scenario := range []string{
			"checkout-pay", "cancel", "refund", "crash-restart", "duplicate-callback", "lock-timeout",
			"lost-event", "trace", "poison", "multi-instance", "extracted-points",
		} {
			require.Regexp(t, `(?m)^`+scenario+` .*PASS$`, stdout)
		}
		require.Regexp(t, `(?m)^two-services .*(PASS|SKIPPED)$`, stdout, "it needs a NATS")
		require.NotContains(t, stdout, "FAIL")
		code, stdout, stderr = program(t, nil, "--dsn", dsn)
		require.Equal(t, 0, code, "a second time on the same database: %s\n%s", stderr, stdout)
	})
}

func TestStoryPlaysOnlyWhatIsAskedOnADatabaseOfItsOwn(t *testing.T) {
	t.Parallel()
	code, stdout, stderr := program(t, nil, "--scenario", "checkout-pay, cancel")
	require.Equal(t, 0, code, stderr)
	require.Contains(t, stdout, "▶ checkout-pay")
	require.Contains(t, stdout, "▶ cancel")
	require.NotContains(t, stdout, "▶ refund")
}
