package store

import (
	"strconv"
	"strings"
	"time"

	"github.com/uptrace/bun/schema"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

// Delivery names one event on its way to one consumer.
type Delivery struct {
	Consumer      string // its key
	EventID       string
	EventType     string
	OutboxID      int64
	AggregateType string
	AggregateID   string
	TenantID      int64 // 0 if the event has none
	Attempts      int   // runs so far, the present one included
	// Left says that the instance does not know the schema version of the event: the delivery waits for one that does.
	Left bool
	// Suspect says that a process that has died may have started the delivery: it runs alone.
	Suspect bool
}

// Aggregate is the entity within which the delivery keeps its place. A row that names none stands for itself.
func (d Delivery) Aggregate() Aggregate {
	if d.AggregateType == "" {
		return Aggregate{ID: d.EventID}
	}
	return Aggregate{Tenant: d.TenantID, Type: d.AggregateType, ID: d.AggregateID}
}

// The columns of a delivery in an INSERT, with what each begins with. The defaults of the other columns say SUCCESS and now.
const (
	insertInto = "INSERT INTO " + deliveryTable +
		" (tenant_id, consumer_name, event_id, event_type, outbox_id, aggregate_type, aggregate_id, attempts"
	// fromEvents copies the columns from the events e: a list of their ids is less to parse than values.
	fromEvents = "SELECT e.tenant_id, ?, e.event_id, e.event_type, e.id, e.aggregate_type, e.aggregate_id, ?"
	// byValue takes the arguments that [Delivery.values] returns.
	byValue     = "(?,?,?,?,?,?,?,?"
	inOrder     = " ORDER BY e.id"         // the log keeps the order of an aggregate
	uniqueEvent = "consumer_name,event_id" // the columns of uk_event_consumer
)

// values are the arguments of byValue.
func (d Delivery) values() []any {
	return []any{
		nullInt(d.TenantID), d.Consumer, d.EventID, d.EventType, nullInt(d.OutboxID), d.AggregateType, d.AggregateID, d.Attempts,
	}
}

// valuesOf is a VALUES of rows, each with more at its end. It is text without arguments, which would be eight allocations for
// each row.
func valuesOf(in schema.Dialect, ds []Delivery, more string) string {
	quote := in.AppendString
	b := append(make([]byte, 0, 160*len(ds)), "VALUES "...)
	for i, d := range ds {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendID(append(b, '('), d.TenantID)
		for _, s := range []string{d.Consumer, d.EventID, d.EventType} {
			b = quote(append(b, ','), s)
		}
		b = appendID(append(b, ','), d.OutboxID)
		b = quote(append(b, ','), d.AggregateType)
		b = quote(append(b, ','), d.AggregateID)
		b = strconv.AppendInt(append(b, ','), int64(d.Attempts), 10)
		b = append(append(b, more...), ')')
	}
	return string(b)
}

// appendID writes an id, or NULL for none.
func appendID(b []byte, id int64) []byte {
	if id == 0 {
		return append(b, "NULL"...)
	}
	return strconv.AppendInt(b, id, 10)
}

// after is the instant that lies delay after now, as text without an argument.
func after(d dialect.Dialect, delay time.Duration) string {
	return strings.Replace(d.After, "?", strconv.FormatInt(dialect.Micro(delay), 10), 1)
}

func nullInt(n int64) any {
	if n == 0 {
		return nil
	}
	return n
}

func nullText(s string) any {
	if s == "" {
		return nil
	}
	return s
}
