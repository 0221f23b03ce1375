package view

import (
	"slices"
	"strings"
	"time"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

// Search is what to look for. Empty fields select everything.
type Search struct {
	AggregateTypes []string // of the aggregate, if it is named
	AggregateType  string
	AggregateID    string
	TraceID        string
	TenantID       int64
	Tenants        []int64 // besides: one of these
	EventType      string
	Status         string // of events
	Consumer       string // deliveries to it
	States         []string
	Since, Until   time.Time
	FromID, ToID   int64 // bounds of the ids of events; 0: none
	Errors         int   // how many characters of the errors of deliveries to read
}

// Walks chooses the walks that a search needs: the narrowest index that serves it. A statement of theirs looks at so many rows.
func Walks(d dialect.Dialect, s Search, look int) []Walk {
	walks := eventWalks
	if s.Consumer != "" {
		walks = deliveryWalks
	}
	chosen := walks(d, s)
	for i := range chosen {
		chosen[i].look = look
		if len(s.Tenants) > 0 {
			owns, arg := owned("x", s.Tenants)
			chosen[i] = chosen[i].with(true, owns, arg)
		}
	}
	return chosen
}

func eventWalks(d dialect.Dialect, s Search) (walks []Walk) {
	add := func(archiveToo bool, w Walk) {
		w.Table = Events
		archived := w
		archived.Table = EventsArchive
		walks = append(walks, ofEvents(d, s, bounded(s, w)))
		if archiveToo && (s.Status == "" || s.Status == "SENT") {
			walks = append(walks, ofEvents(d, s, archived))
		}
	}
	switch {
	case s.TraceID != "":
		add(true, Walk{index: "idx_trace_id", where: []string{"x.trace_id = ?"}, args: []any{s.TraceID}})
	case s.AggregateID != "":
		for _, t := range s.AggregateTypes {
			add(true, Walk{
				index: "idx_aggregate", where: []string{"x.aggregate_type = ?", "x.aggregate_id = ?"}, args: []any{t, s.AggregateID},
			})
		}
	case s.Status != "" && s.Status != "SENT":
		of := Walk{ // SQLite has to be told what is not SENT
			index: "idx_status_next_retry", where: []string{"x.status = ?", "x.status <> 'SENT'"}, args: []any{s.Status},
		}
		due, never := halves(of)
		add(false, due)
		add(false, never)
	default:
		add(false, Walk{index: "PRIMARY"})
	}
	return walks
}

// halves are the rows with a time, in the order of these, and those without.
func halves(of Walk) (due, never Walk) {
	due, never = of, of
	due.where, due.isTimed = append(slices.Clone(of.where), "x.next_retry_at IS NOT NULL"), true
	never.where = append(slices.Clone(of.where), "x.next_retry_at IS NULL")
	return due, never
}

// bounded limits a walk along the live table to ids.
func bounded(s Search, w Walk) Walk {
	w.where, w.args = slices.Clone(w.where), slices.Clone(w.args)
	if s.FromID > 0 {
		w.where, w.args = append(w.where, "x.id >= ?"), append(w.args, s.FromID)
	}
	if s.ToID > 0 {
		w.where, w.args = append(w.where, "x.id < ?"), append(w.args, s.ToID)
	}
	return w
}

// ofEvents adds to a walk what else the search wants of events.
func ofEvents(d dialect.Dialect, s Search, w Walk) Walk {
	add := func(wanted bool, column, op, value string, arg any) {
		chosen := slices.ContainsFunc(w.where, func(c string) bool { return strings.HasPrefix(c, "x."+column+" =") })
		w = w.with(wanted && !chosen, "x."+column+" "+op+" "+value, arg)
	}
	add(s.TenantID != 0, "tenant_id", "=", "?", s.TenantID)
	add(s.EventType != "", "event_type", "=", "?", s.EventType)
	add(s.Status != "", "status", "=", "?", s.Status)
	add(s.AggregateType != "", "aggregate_type", "=", "?", s.AggregateType)
	add(s.AggregateID != "", "aggregate_id", "=", "?", s.AggregateID)
	add(!s.Since.IsZero(), "created_at", ">=", d.At, s.Since.UnixMicro())
	add(!s.Until.IsZero(), "created_at", "<", d.At, s.Until.UnixMicro())
	return w
}

// deliveryWalks go along the deliveries of one consumer.
func deliveryWalks(d dialect.Dialect, s Search) (walks []Walk) {
	for _, state := range s.States {
		is, args := []string{"x.consumer_name = ?", "x.status = ?"}, []any{s.Consumer, state}
		if state == "SUCCESS" && d.Name != "mysql" { // the index leaves these out
			walks = append(walks, ofDeliveries(d, s, Walk{Table: Deliveries, filter: is, filters: args}))
			continue
		}
		of := Walk{Table: Deliveries, index: "idx_consumer_due", where: is, args: args, errors: s.Errors}
		if state != "SUCCESS" {
			of.where = append(of.where, "x.status <> 'SUCCESS'") // SQLite has to be told
		}
		due, never := halves(of)
		walks = append(walks, ofDeliveries(d, s, due), ofDeliveries(d, s, never))
	}
	return walks
}

// ofDeliveries adds to a walk what else the search wants of deliveries and their events.
func ofDeliveries(d dialect.Dialect, s Search, w Walk) Walk {
	w = w.with(s.TenantID != 0, "x.tenant_id = ?", s.TenantID).
		with(s.EventType != "", "x.event_type = ?", s.EventType).
		with(s.AggregateType != "", "x.aggregate_type = ?", s.AggregateType).
		with(s.AggregateID != "", "x.aggregate_id = ?", s.AggregateID)
	of := len(w.filter)
	w = w.with(s.Status != "", "e.status = ?", s.Status).
		with(s.TraceID != "", "e.trace_id = ?", s.TraceID).
		with(!s.Since.IsZero(), "e.created_at >= "+d.At, s.Since.UnixMicro()).
		with(!s.Until.IsZero(), "e.created_at < "+d.At, s.Until.UnixMicro())
	w.joins = len(w.filter) > of
	return w
}
