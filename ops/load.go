package ops

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/eventrow"
	"github.com/bluecone-go/bluecone/internal/origin"
	"github.com/bluecone-go/bluecone/internal/store/view"
	"github.com/bluecone-go/bluecone/outbox"
)

// loader makes events and deliveries of rows, as far as somebody may see them.
type loader struct {
	access   *access
	redactor *redactor
	url      func(traceID string) string // Config.TraceURL
}

func newLoader(a *access, cfg Config) *loader {
	return &loader{access: a, redactor: newRedactor(cfg), url: cfg.TraceURL}
}

// event makes an event of a row, with so much of its texts.
func (l *loader) event(r view.Event, isArchived bool, most int) Event {
	e := Event{
		OutboxID: r.OutboxID, EventID: r.EventID, EventType: r.EventType, SchemaVersion: r.SchemaVersion,
		AggregateType: r.AggregateType, AggregateID: r.AggregateID, TenantID: r.TenantID, StoreID: r.StoreID,
		Status: outbox.Status(r.Status), TraceID: r.TraceID, LastError: shown(r.LastError, most), LockedBy: r.LockedBy, Expired: r.Expired,
		CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt, SentAt: r.SentAt, NextRetryAt: r.NextRetryAt,
		Archived: isArchived, Deliveries: []Delivery{},
	}
	if e.Status == outbox.StatusNew {
		e.NextRetryAt = time.Time{} // of no meaning
	}
	e.IdempotencyKey = l.redactor.entry(e.EventType, "idempotencyKey", r.Key)
	if md, err := eventrow.Metadata([]byte(r.Metadata)); err == nil {
		entry := func(name string) string { return shown(l.redactor.entry(e.EventType, name, md[name]), most) }
		e.RequestID, e.UserID, e.Source, e.Instance = entry(bus.MetaRequestID), entry(bus.MetaUserID), entry("source"), entry("instance")
		if e.TraceID == "" {
			e.TraceID = shown(md[bus.MetaTraceID], nameText)
		}
	}
	e.TraceURL = l.traceURL(e.TraceID)
	return e
}

func (l *loader) traceURL(id string) string {
	if id == "" || l.url == nil {
		return ""
	}
	return l.url(id)
}

// eventsByID loads events by event id: from the outbox, its archive, or what the consume log still
// knows of them. The order is that of their outbox ids.
func (l *loader) eventsByID(ctx context.Context, eventIDs []string, most int) ([]Event, error) {
	if len(eventIDs) == 0 {
		return nil, nil
	}
	found := make(map[string]bool, len(eventIDs))
	var out []Event
	for _, from := range []view.Table{view.Events, view.EventsArchive} {
		missing := slices.DeleteFunc(slices.Clone(eventIDs), func(id string) bool { return found[id] })
		if len(missing) == 0 {
			break
		}
		rows, err := view.EventsByID(ctx, l.access.sql, from, missing, most)
		if err != nil {
			return nil, fmt.Errorf("ops: read events: %w", err)
		}
		for _, r := range rows {
			found[r.EventID] = true
			out = append(out, l.event(r, from == view.EventsArchive, most))
		}
	}
	slices.SortFunc(out, func(a, b Event) int { return cmp.Compare(a.OutboxID, b.OutboxID) })
	return out, nil
}

// eventsByRow loads events by primary key, in the given order.
func (l *loader) eventsByRow(ctx context.Context, from view.Table, ids []int64) ([]Event, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	place := make(map[int64]int, len(ids))
	for i, id := range ids {
		place[id] = i
	}
	rows, err := view.EventsByRow(ctx, l.access.sql, from, ids, listText)
	if err != nil {
		return nil, fmt.Errorf("ops: read events: %w", err)
	}
	out := make([]Event, 0, len(rows))
	for _, r := range rows {
		out = append(out, l.event(r, from == view.EventsArchive, listText))
	}
	slices.SortFunc(out, func(a, b Event) int { return place[a.OutboxID] - place[b.OutboxID] })
	return out, nil
}

// logRow is a row of the consume log, with the event it belongs to.
type logRow struct {
	Delivery

	of view.Delivery
}

func newLogRow(r view.Delivery, most int) logRow {
	d := Delivery{
		Consumer: r.Consumer, Status: consumelog.Status(r.Status), Replay: consumelog.IsReplay(r.Consumer), Attempts: r.Attempts,
		Error: shown(r.Error, most), IdempotencyKey: r.Key, Result: r.Result, LockedBy: r.LockedBy,
		CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt, NextRetryAt: r.NextRetryAt, Left: r.IsLeft,
	}
	if d.Status == consumelog.Success {
		d.ConsumedAt = r.ConsumedAt
	}
	return logRow{d, r}
}

// deliveries reads the deliveries of events, from the log and its archive, with so much of their texts. There may be more
// of them than may be read.
func (l *loader) deliveries(ctx context.Context, eventIDs []string, most int) (out map[string][]logRow, more bool, err error) {
	out = make(map[string][]logRow)
	if len(eventIDs) == 0 {
		return out, false, nil
	}
	left, caller := budget(readBudget), CallerOf(ctx)
	for _, from := range []view.Table{view.Deliveries, view.DeliveriesArchive} {
		missing := slices.DeleteFunc(slices.Clone(eventIDs), func(id string) bool { return len(out[id]) > 0 })
		if len(missing) == 0 || more {
			break
		}
		err := view.DeliveriesOf(ctx, l.access.sql, from, missing, most, func(r view.Delivery) error {
			if err := left.take(r.EventID, r.Error, r.Result, r.Key); err != nil {
				more = true
				return err
			}
			if caller.Sees(r.TenantID) {
				out[r.EventID] = append(out[r.EventID], newLogRow(r, most))
			}
			return nil
		})
		if err != nil {
			return nil, false, fmt.Errorf("ops: read deliveries: %w", err)
		}
	}
	return out, more, nil
}

// complete adds to events their deliveries: those of the log, and those that the registry expects.
func (l *loader) complete(ctx context.Context, events []Event) error {
	k, err := l.access.registry(ctx)
	if err != nil {
		return err
	}
	return l.completeWith(ctx, k, events, listText)
}

func (l *loader) completeWith(ctx context.Context, k known, events []Event, most int) error {
	ids := make([]string, len(events))
	for i, e := range events {
		ids[i] = e.EventID
	}
	log, more, err := l.deliveries(ctx, ids, most)
	if err != nil {
		return err
	}
	for i := range events {
		e := &events[i]
		e.Truncated = more
		e.Deliveries = []Delivery{} // events may be shared
		for _, r := range log[e.EventID] {
			d := r.Delivery
			d.Registered = k.has(d.Consumer) || e.EventType == origin.Undecodable
			d.Result, _ = l.redactor.result(e.EventType, d.Result) // what was cut is no JSON
			d.Result = shown(d.Result, most)
			e.Deliveries = append(e.Deliveries, d)
		}
		if e.Status != outbox.StatusSent {
			e.Deliveries = append(e.Deliveries, k.expected(*e)...)
		}
		slices.SortStableFunc(e.Deliveries, func(a, b Delivery) int { return strings.Compare(a.Consumer, b.Consumer) })
	}
	return nil
}

// remember makes events of those ids that have left no row but their deliveries.
func (l *loader) remember(ctx context.Context, eventIDs []string) ([]Event, error) {
	log, _, err := l.deliveries(ctx, eventIDs, listText)
	if err != nil {
		return nil, err
	}
	var out []Event
	for _, id := range eventIDs {
		if len(log[id]) == 0 {
			continue
		}
		r := log[id][0].of
		e := Event{
			OutboxID: r.OutboxID, EventID: id, EventType: r.EventType, SchemaVersion: 1,
			AggregateType: r.AggregateType, AggregateID: r.AggregateID, TenantID: r.TenantID, Status: outbox.StatusSent,
			CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt, Deleted: true, Deliveries: []Delivery{},
		}
		out = append(out, e)
	}
	return out, nil
}

// histories adds to events the attempts that did not succeed.
func (l *loader) histories(ctx context.Context, events []Event) error {
	ids := make([]string, len(events))
	for i, e := range events {
		ids[i] = e.EventID
	}
	if len(ids) == 0 {
		return nil
	}
	type key struct{ event, consumer string }
	found := make(map[key][]Attempt)
	left, more := budget(readBudget), false
	err := view.AttemptsOf(ctx, l.access.sql, ids, pageText, func(r view.Attempt) error {
		if err := left.take(r.Error, r.EventID); err != nil {
			more = true
			return err
		}
		k := key{r.EventID, r.Consumer}
		found[k] = append(found[k], Attempt{
			Attempt: r.Attempt, Outcome: consumelog.Status(r.Outcome), Error: shown(r.Error, pageText), Instance: r.Instance,
			Duration: r.Duration, At: r.At,
		})
		return nil
	})
	if err != nil {
		return fmt.Errorf("ops: read attempts: %w", err)
	}
	for i := range events {
		events[i].Truncated = events[i].Truncated || more
		for j := range events[i].Deliveries {
			d := &events[i].Deliveries[j]
			d.History = found[key{events[i].EventID, d.Consumer}]
		}
	}
	return nil
}
