package story

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/bluecone-go/bluecone/demo/bluecone/module/order"
	"github.com/bluecone-go/bluecone/demo/bluecone/monolith"
	"github.com/bluecone-go/bluecone/demo/bluecone/web"
)

// Spans keeps the finished spans of this process.
type Spans struct {
	mu    sync.Mutex
	ended []sdktrace.ReadOnlySpan
}

// NewSpans returns an empty store.
func NewSpans() *Spans { return &Spans{} }

// OnStart does nothing.
func (*Spans) OnStart(context.Context, sdktrace.ReadWriteSpan) {}

// OnEnd keeps the span.
func (s *Spans) OnEnd(span sdktrace.ReadOnlySpan) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = append(s.ended, span)
}

// Shutdown does nothing.
func (*Spans) Shutdown(context.Context) error { return nil }

// ForceFlush does nothing.
func (*Spans) ForceFlush(context.Context) error { return nil }

// Of returns the spans of one trace, by their start.
func (s *Spans) Of(id trace.TraceID) []sdktrace.ReadOnlySpan {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []sdktrace.ReadOnlySpan
	for _, span := range s.ended {
		if span.SpanContext().TraceID() == id {
			out = append(out, span)
		}
	}
	slices.SortFunc(out, func(a, b sdktrace.ReadOnlySpan) int { return a.StartTime().Compare(b.StartTime()) })
	return out
}

func traceOrder(ctx context.Context, w *world) error {
	return w.with(ctx, nil, func(app *monolith.App) error {
		base, stop, err := w.listen(app)
		if err != nil {
			return err
		}
		defer stop()
		u, err := w.user(ctx, app)
		if err != nil {
			return err
		}
		var placed struct{ OrderID string }
		if err := post(ctx, base+"/orders", order.NewOrder{
			UserID: u.UserID, TotalCents: 5000, WalletCents: 1000, Points: 200, CouponID: u.CouponIDs[0],
		}, &placed); err != nil {
			return err
		}
		if err := quiet(ctx, app); err != nil {
			return err
		}
		if err := post(ctx, base+"/orders/"+placed.OrderID+"/pay", map[string]string{"payNo": "pay-" + placed.OrderID}, nil); err != nil {
			return err
		}
		if err := quiet(ctx, app); err != nil {
			return err
		}
		return w.showTrace(ctx, app, placed.OrderID)
	})
}

// showTrace prints the order's traces as trees and checks that each reaches from the
// request to the movement of every asset.
func (w *world) showTrace(ctx context.Context, app *monolith.App, orderID string) error {
	t, err := web.TimelineOf(ctx, app, orderID)
	if err != nil {
		return err
	}
	for i, wanted := range [][]string{
		{"POST /orders", "save order.checkout_locked", "consume order.checkout_locked", "coupon.lock", "wallet.freeze", "points.freeze"},
		{
			"POST /orders/" + orderID + "/pay", "save order.paid", "consume order.paid", "coupon.commit", "wallet.commit", "points.commit",
			"points.earn",
		},
	} {
		if i >= len(t.Events) {
			return fmt.Errorf("the order has %d events", len(t.Events))
		}
		id, err := trace.TraceIDFromHex(t.Events[i].TraceID)
		if err != nil {
			return fmt.Errorf("event %s has no trace id: %w", t.Events[i].EventID, err)
		}
		spans := w.Spans.Of(id)
		w.step("trace %s of order %s, event %s", id, orderID, t.Events[i].EventType)
		w.printTree(spans)
		w.check("one trace: "+strings.Join(wanted[1:], ", "), "one trace: "+strings.Join(found(spans, wanted)[1:], ", "))
	}
	return nil
}

// found lists those of the wanted names that the trace holds under its first.
func found(spans []sdktrace.ReadOnlySpan, wanted []string) []string {
	out := []string{""}
	for i, name := range wanted {
		if slices.ContainsFunc(spans, func(s sdktrace.ReadOnlySpan) bool { return s.Name() == name && connected(spans, s, wanted[0]) }) && i > 0 {
			out = append(out, name)
		}
	}
	return out
}

// connected reports whether a span descends from one of the given name.
func connected(spans []sdktrace.ReadOnlySpan, s sdktrace.ReadOnlySpan, root string) bool {
	for s.Name() != root {
		i := slices.IndexFunc(spans, func(p sdktrace.ReadOnlySpan) bool { return p.SpanContext().SpanID() == s.Parent().SpanID() })
		if i < 0 {
			return false
		}
		s = spans[i]
	}
	return true
}

func (w *world) printTree(spans []sdktrace.ReadOnlySpan) {
	var walk func(parent trace.SpanID, depth int)
	walk = func(parent trace.SpanID, depth int) {
		for _, s := range spans {
			if s.Parent().SpanID() != parent {
				continue
			}
			_, _ = fmt.Fprintf(w.Out, "           %s%s%s  %s\n", strings.Repeat("  ", depth), "└ ", label(s),
				s.EndTime().Sub(s.StartTime()).Round(time.Microsecond))
			walk(s.SpanContext().SpanID(), depth+1)
		}
	}
	walk(trace.SpanID{}, 0)
}

func label(s sdktrace.ReadOnlySpan) string {
	parts := []string{s.Name()}
	for _, kv := range s.Attributes() {
		if kv.Key == "consumer" || kv.Key == "idempotencyKey" || kv.Key == "result" {
			parts = append(parts, string(kv.Key)+"="+kv.Value.String())
		}
	}
	return strings.Join(parts, " ")
}

// listen serves the app over HTTP on a free port.
func (w *world) listen(app *monolith.App) (base string, stop func(), err error) {
	var lc net.ListenConfig
	l, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	server := &http.Server{Handler: web.New(app, web.Config{Faults: true, Metrics: w.Metrics}), ReadHeaderTimeout: 10 * time.Second}
	go server.Serve(l) //nolint:errcheck // it ends with Close
	return "http://" + l.Addr().String(), func() { _ = server.Close() }, nil
}

var client = &http.Client{Timeout: 30 * time.Second} //nolint:gochecknoglobals // one pool of connections

// refusedError is an answer that is not 2xx.
type refusedError struct {
	status int
	text   string
}

func (e *refusedError) Error() string { return fmt.Sprintf("%d: %s", e.status, e.text) }

// post calls the API and reads its answer into out.
func post(ctx context.Context, url string, body, out any) error {
	return postWithKey(ctx, url, "", body, out)
}

// postWithKey calls the API under an idempotency key.
func postWithKey(ctx context.Context, url, key string, body, out any) error {
	b, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(b))
	if err != nil {
		return err
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	return call(req, out)
}

func call(req *http.Request, out any) error {
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	var answer json.RawMessage
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil {
		return err
	}
	if res.StatusCode >= http.StatusMultipleChoices {
		return &refusedError{res.StatusCode, string(answer)}
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(answer, out)
}
