package store

import (
	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/eventrow"
	"github.com/bluecone-go/bluecone/internal/prepared"
)

// Aggregate is the entity within which order holds.
type Aggregate = eventrow.Aggregate

const (
	eventTable    = "bc_outbox_event"
	deliveryTable = "bc_event_consume_log"
)

// Order answers questions about the order of an aggregate's events and deliveries. It is safe for concurrent use.
type Order struct {
	d     dialect.Dialect
	stmts *prepared.Statements
}

// NewOrder returns the questions in the words of a database, sent by way of its prepared statements.
func NewOrder(d dialect.Dialect, stmts *prepared.Statements) Order { return Order{d, stmts} }
