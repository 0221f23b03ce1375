package web

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"time"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/demo/bluecone/monolith"
	"github.com/bluecone-go/bluecone/demo/httpserver"
	"github.com/bluecone-go/bluecone/outbox"
)

// Timeline is what happened to an order.
type Timeline struct {
	OrderID string  `json:"orderId"`
	Status  string  `json:"status"`
	Events  []Entry `json:"events"`
}

// Entry is one event with its deliveries.
type Entry struct {
	EventID     string          `json:"eventId"`
	EventType   string          `json:"eventType"`
	Aggregate   string          `json:"aggregateType"`
	AggregateID string          `json:"aggregateId"`
	Status      outbox.Status   `json:"status"`
	Payload     json.RawMessage `json:"payload"`
	TraceID     string          `json:"traceId"`
	RequestID   string          `json:"requestId"`
	Source      string          `json:"source,omitempty"`
	CreatedAt   time.Time       `json:"createdAt"`
	SentAt      time.Time       `json:"sentAt,omitzero"`
	LastError   string          `json:"lastError,omitempty"`
	Deliveries  []Delivery      `json:"deliveries"`
}

// Delivery is what became of an event at one consumer.
type Delivery struct {
	Consumer       string            `json:"consumer"`
	Status         consumelog.Status `json:"status"`
	Attempts       int               `json:"attempts"`
	Error          string            `json:"error"`
	IdempotencyKey string            `json:"idempotencyKey"`
	Result         json.RawMessage   `json:"result"`
	CreatedAt      time.Time         `json:"createdAt"`
	ConsumedAt     time.Time         `json:"consumedAt"`
	NextRetryAt    time.Time         `json:"nextRetryAt,omitzero"`
	TraceID        string            `json:"traceId"`
}

// TimelineOf reads the events of an order and of its refund, in order, with their deliveries.
func TimelineOf(ctx context.Context, app *monolith.App, orderID string) (Timeline, error) {
	o, err := app.Orders.Get(ctx, orderID)
	if err != nil {
		return Timeline{}, err
	}
	t := Timeline{OrderID: orderID, Status: o.Status, Events: []Entry{}}
	records, err := app.Outbox.Events(ctx, outbox.Filter{AggregateType: "ORDER", AggregateID: orderID})
	if err != nil {
		return t, err
	}
	if o.RefundID() != "" {
		refunds, err := app.Outbox.Events(ctx, outbox.Filter{AggregateType: "REFUND", AggregateID: o.RefundID()})
		if err != nil {
			return t, err
		}
		records = append(records, refunds...)
		slices.SortFunc(records, func(a, b outbox.Record) int { return int(a.OutboxID - b.OutboxID) })
	}
	ids := make([]string, len(records))
	for i, r := range records {
		ids[i] = r.EventID
	}
	deliveries, err := app.Outbox.Log().ByEvents(ctx, ids...)
	if err != nil {
		return t, err
	}
	for _, r := range records {
		t.Events = append(t.Events, entryOf(r, deliveries))
	}
	return t, nil
}

func entryOf(r outbox.Record, deliveries []consumelog.Record) Entry {
	var md map[string]any
	if json.Unmarshal([]byte(r.Metadata), &md) != nil {
		md = nil // metadata written by hand may be anything
	}
	text := func(key string) string {
		s, _ := md[key].(string)
		return s
	}
	e := Entry{
		EventID: r.EventID, EventType: r.EventType, Aggregate: r.AggregateType, AggregateID: r.AggregateID, Status: r.Status, Payload: r.Payload,
		TraceID: text(bus.MetaTraceID), RequestID: text(bus.MetaRequestID), Source: text("source"), CreatedAt: r.CreatedAt, SentAt: r.SentAt,
		LastError: r.LastError, Deliveries: []Delivery{},
	}
	if !json.Valid(e.Payload) {
		e.Payload, _ = json.Marshal(string(e.Payload)) // a string always encodes
	}
	for _, d := range deliveries {
		if d.EventID != r.EventID {
			continue
		}
		result := json.RawMessage(d.Result)
		if !json.Valid(result) {
			result = json.RawMessage("null")
		}
		e.Deliveries = append(e.Deliveries, Delivery{
			Consumer: d.Consumer, Status: d.Status, Attempts: d.Attempts, Error: d.Error, IdempotencyKey: d.IdempotencyKey, Result: result,
			CreatedAt: d.CreatedAt, ConsumedAt: d.ConsumedAt, NextRetryAt: d.NextRetryAt, TraceID: e.TraceID,
		})
	}
	return e
}

func (a *API) timeline(w http.ResponseWriter, r *http.Request) {
	t, err := TimelineOf(r.Context(), a.app, r.PathValue("id"))
	if err != nil {
		fail(w, r, err)
		return
	}
	httpserver.Answer(w, http.StatusOK, t)
}
