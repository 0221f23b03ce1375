package guides_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/bustest"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/outbox"
)

// OrderPlaced says that somebody has ordered.
type OrderPlaced struct {
	OrderID, Card string
	Cents         int
}

func (OrderPlaced) EventType() string              { return "order.placed" }
func (e OrderPlaced) Aggregate() (kind, id string) { return "ORDER", e.OrderID }

// payments calls the payment service.
type payments struct {
	url    string
	client *http.Client
}

func (p payments) charge(ctx context.Context, key string, e OrderPlaced) error {
	body := strings.NewReader(fmt.Sprintf(`{"order": %q, "card": %q, "cents": %d}`, e.OrderID, e.Card, e.Cents))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url+"/charges", body)
	if err != nil {
		return bus.Permanent(err)
	}
	req.Header.Set("Idempotency-Key", key)
	resp, err := p.client.Do(req)
	if err != nil {
		return err // a refused connection opens the circuit by itself; anything else counts as an attempt
	}
	defer resp.Body.Close()
	return answer(resp)
}

func answer(resp *http.Response) error {
	err := fmt.Errorf("payment service: %s", resp.Status)
	switch code := resp.StatusCode; {
	case code < 300:
		return nil
	case code == http.StatusTooManyRequests:
		return bus.RetryAfter(err, 30*time.Second) // not counted as an attempt
	case code == http.StatusBadGateway, code == http.StatusServiceUnavailable, code == http.StatusGatewayTimeout:
		return bus.Unavailable(err) // not counted, and the circuit opens
	case code == http.StatusBadRequest, code == http.StatusPaymentRequired, code == http.StatusUnprocessableEntity:
		return bus.Permanent(err) // the same request will never do: DEAD at once
	default:
		return err // tried again after 2, 4, 8 … seconds
	}
}

func registerPayments(b *bus.Bus, db *bun.DB, ob *outbox.Outbox, p payments) {
	c := b.Consumer("Payments", bus.ConsumerConfig{Timeout: 10 * time.Second, Rate: 20})
	bus.OnExternal(c, func(ctx context.Context, m bus.Message[OrderPlaced]) error {
		if err := p.charge(ctx, m.Key(), m.Payload); err != nil {
			return err
		}
		return db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
			return ob.Save(ctx, tx, OrderPaid{OrderID: m.Payload.OrderID, Cents: m.Payload.Cents}) // keyed: saved once
		})
	})
}

// mailer sends mail.
type mailer func(ctx context.Context, messageID, text string) error

func registerReceipts(b *bus.Bus, send mailer) {
	c := b.Consumer("Receipts", bus.ConsumerConfig{Unordered: true})
	bus.OnExternal(c, func(ctx context.Context, m bus.Message[OrderPaid]) error {
		text := fmt.Sprintf("Order %s is paid. Thank you.", m.Payload.OrderID)
		return send(ctx, "<"+m.Key()+"@shop.example>", text)
	})
}

// service is a payment service: it charges once for each key.
type service struct {
	mu      sync.Mutex
	calls   int
	charges map[string]int
	refuse  []int // the answers to the first calls
}

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	if len(s.refuse) > 0 {
		w.WriteHeader(s.refuse[0])
		s.refuse = s.refuse[1:]
		return
	}
	_, _ = io.Copy(io.Discard, r.Body)
	s.charges[r.Header.Get("Idempotency-Key")] = 1
}

func paymentHarness(t *testing.T, refuse ...int) (*bustest.Harness, *service) {
	s := &service{charges: make(map[string]int), refuse: refuse}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	db := bustest.NewDB(t)
	h := bustest.New(t, db)
	client := server.Client()
	t.Cleanup(client.CloseIdleConnections)
	registerPayments(h.Bus, db, h.Outbox, payments{url: server.URL, client: client})
	return h, s
}

// The call runs more than once, and the customer pays once.
func TestOneChargeForEachOrder(t *testing.T) {
	t.Parallel()
	h, s := paymentHarness(t, http.StatusTooManyRequests, http.StatusInternalServerError)
	h.Bus.Unconsumed("order.paid")
	bustest.Deliver(h, OrderPlaced{OrderID: "7", Card: "4711", Cents: 4200})
	h.Drain()
	require.Greater(t, s.calls, 3, "two refusals, a delivery, and one more")
	require.Len(t, s.charges, 1)
	require.Equal(t, 4200, bustest.RequireSaved[OrderPaid](h).Payload.Cents)
}

func TestAnswersOfThePaymentService(t *testing.T) {
	t.Parallel()
	h, s := paymentHarness(t, http.StatusPaymentRequired)
	require.Equal(t, bustest.Report{consumelog.Dead: 1}, bustest.Deliver(h, OrderPlaced{OrderID: "8"}))
	require.Equal(t, 1, s.calls)
	bustest.RequireNotSaved[OrderPaid](h)
	for code, want := range map[int]string{
		http.StatusOK: "<nil>", http.StatusServiceUnavailable: "payment service: 503 Service Unavailable",
		http.StatusConflict: "payment service: 409 Conflict",
	} {
		err := answer(&http.Response{StatusCode: code, Status: fmt.Sprint(code, " ", http.StatusText(code))})
		require.Equal(t, want, fmt.Sprint(err))
		require.False(t, bus.IsPermanent(err))
	}
}

// Every attempt sends the mail under one message id.
func TestReceiptsKeepTheirMessageID(t *testing.T) {
	t.Parallel()
	h := bustest.New(t, bustest.NewDB(t))
	ids := make(map[string]int)
	registerReceipts(h.Bus, func(_ context.Context, id, _ string) error { ids[id]++; return nil })
	bustest.Deliver(h, OrderPaid{OrderID: "7"})
	h.Drain()
	require.Len(t, ids, 1)
	for _, n := range ids {
		require.Greater(t, n, 1)
	}
}
