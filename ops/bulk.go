package ops

import (
	"time"

	"github.com/bluecone-go/bluecone/internal/store"
)

// Action is what a bulk operation does to each event.
type Action string

// The actions of bulk operations.
const (
	// ActionRetry makes DEAD and FAILED deliveries due.
	ActionRetry Action = "retry"
	// ActionReopen makes deliveries of one consumer due that were skipped or discarded.
	ActionReopen Action = "reopen"
	// ActionSkip closes the deliveries of one consumer without an effect.
	ActionSkip Action = "skip"
	// ActionDiscard closes all deliveries that are not done without an effect.
	ActionDiscard Action = "discard"
	// ActionReplay runs the deliveries of one consumer again although they have succeeded.
	ActionReplay Action = "replay"
	// ActionBackfill delivers past events to one consumer that has never had them, in the order in which they were saved.
	ActionBackfill Action = "backfill"
	// ActionStart delivers to a consumer, when it is registered for the first time, the past that its bus.ConsumerConfig.StartFrom asks
	// for. Publishers start such an operation and do it, at the pace of the consumer; operators may cancel and resume it.
	ActionStart Action = store.ActionStart
)

// BulkState is where a bulk operation stands.
type BulkState string

// The states of a bulk operation.
const (
	BulkRunning  BulkState = "RUNNING"
	BulkDone     BulkState = "DONE"
	BulkCanceled BulkState = "CANCELED"
	// BulkFailed stopped at an error, and can be resumed.
	BulkFailed BulkState = "FAILED"
)

// Bulk is an operation on everything a query selects, in the background.
type Bulk struct {
	ID         string        `json:"id"`
	Action     Action        `json:"action"`
	Query      Query         `json:"query"`
	Tenants    []int64       `json:"tenants,omitempty"` // whose events it is limited to, besides Query: those of the caller who started it
	Consumer   string        `json:"consumer,omitempty"`
	Rate       float64       `json:"rate"`     // events per second, 0 for the pace of its consumer
	Spread     time.Duration `json:"spreadNs"` // over which retries fall due
	State      BulkState     `json:"state"`
	Total      Count         `json:"total"`  // as the dry run counted
	Seen       int64         `json:"seen"`   // events looked at
	Done       int64         `json:"done"`   // events changed
	Passed     int64         `json:"passed"` // events that no longer were in a state that allows it
	Actor      string        `json:"actor"`
	Reason     string        `json:"reason"`
	LockedBy   string        `json:"lockedBy,omitempty"` // the instance that works on it
	CreatedAt  time.Time     `json:"createdAt"`
	UpdatedAt  time.Time     `json:"updatedAt"`
	FinishedAt time.Time     `json:"finishedAt,omitzero"`
	Error      string        `json:"error,omitempty"`
}

// NewBulk is what to do, and to which events: those that exist when it is started.
type NewBulk struct {
	ID     string `json:"id,omitempty"` // chosen by the caller, so that a repeated request starts nothing twice. Default: a new one
	Action Action `json:"action"`
	Query  Query  `json:"query"`
	// needed for skip, replay, backfill and reopen; for retry: only its deliveries. Default: Query.Consumer
	Consumer string        `json:"consumer,omitempty"`
	Rate     float64       `json:"rate,omitempty"`     // events per second. Default: 100
	Spread   time.Duration `json:"spreadNs,omitempty"` // retries fall due over this time, evenly. Default: 0, at once
}
