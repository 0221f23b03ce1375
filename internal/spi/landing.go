package spi

import (
	"context"
	"errors"
	"time"
)

// Event is one that comes from elsewhere, to be saved as it is.
type Event struct {
	ID, Type                   string
	AggregateType, AggregateID string
	TenantID, StoreID          int64 // 0 for none
	SchemaVersion              int
	Payload                    []byte // JSON
	Metadata                   map[string]string
	// Dead says why nobody can handle the event: it is saved as DEAD, with a delivery to DeadConsumer that says so. Empty for others.
	Dead string
}

// Batch is what one partition of a broker has brought.
type Batch struct {
	Inbox, Partition string
	Offset           string // of the last, "" for none
	IsOwned          bool   // whether this instance has to have the partition for itself
	DeadConsumer     string
	Events           []Event
}

// Counts are what an inbox has landed since there is a row of it.
type Counts struct{ Landed, Duplicates, Undecodable int }

// ErrData is wrapped by an error of the database that an event of the batch has caused by what it holds.
var ErrData = errors.New("the database does not take what an event holds")

// ErrLeftOut means that a message is not to land.
var ErrLeftOut = errors.New("the message is left out")

// Landing saves events that come from elsewhere.
type Landing interface {
	// Check says what is wrong with an event, before it costs a transaction.
	Check(e Event) error
	// Land saves the events that are not known, by one transaction, and counts them and the others. Repeats are known by their ids.
	Land(ctx context.Context, b Batch) (Counts, error)
	// Open counts the events of the database that are neither done nor DEAD, up to most.
	Open(ctx context.Context, most int) (int, error)
	// Own takes a partition for this instance, or reports false while another has it. Release gives all back.
	Own(ctx context.Context, inbox, partition string, d time.Duration) (bool, error)
	Release(ctx context.Context, inbox string) error
	// Again lands what operators have asked for: the due deliveries of the type as which this inbox lands what it cannot read, once each, in
	// the order in which that came. read reads such an event; [ErrLeftOut] means that it is not to land.
	Again(ctx context.Context, inbox, eventType string, read func(Event) (Event, error)) (Counts, error)
	// Tell writes what read knows of the broker into bc_broker, every few seconds, until ctx ends.
	Tell(ctx context.Context, read func(ctx context.Context) Broker)
	// Counts are the sums over all partitions and instances.
	Counts(ctx context.Context, inbox string) (Counts, error)
}

// Access is embedded in an outbox. Its method is not exported, so users of the outbox do not see it; [LandingOf] calls it.
type Access struct{ l Landing }

// AccessTo gives access to a landing.
func AccessTo(l Landing) Access { return Access{l} }

func (a Access) landing() Landing { return a.l }

// Outbox is what embeds an [Access]: an *outbox.Outbox, which this package must not import.
type Outbox interface{ landing() Landing }

// LandingOf is the landing of an outbox.
func LandingOf(ob Outbox) Landing { return ob.landing() }
