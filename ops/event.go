package ops

import (
	"time"

	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/outbox"
)

// Page is a piece of a list.
type Page[T any] struct {
	Rows []T `json:"rows"` // never nil
	// Next is the cursor of the following piece, empty at the end.
	Next string `json:"next,omitempty"`
	// SearchedTo is set if the search stopped before it had found a full page: it has looked at
	// every event back to this time. Next goes on from there.
	SearchedTo time.Time `json:"searchedTo,omitzero"`
}

// Query selects events. Empty fields select everything.
type Query struct {
	EventID        string            `json:"eventId,omitempty"`
	AggregateType  string            `json:"aggregateType,omitempty"`
	AggregateID    string            `json:"aggregateId,omitempty"`
	IdempotencyKey string            `json:"idempotencyKey,omitempty"` // of the event, or recorded by a consumer
	TraceID        string            `json:"traceId,omitempty"`
	TenantID       int64             `json:"tenantId,string,omitempty"`
	EventType      string            `json:"eventType,omitempty"`
	Status         outbox.Status     `json:"status,omitempty"`
	Consumer       string            `json:"consumer,omitempty"`       // events whose delivery to it is in DeliveryStatus
	DeliveryStatus consumelog.Status `json:"deliveryStatus,omitempty"` // needs Consumer. Default: DEAD
	Fingerprint    string            `json:"fingerprint,omitempty"`    // of a group of dead letters
	Since          time.Time         `json:"since,omitzero"`           // saved then or later
	Until          time.Time         `json:"until,omitzero"`           // saved before
	Cursor         string            `json:"cursor,omitempty"`         // Page.Next of the page before
	Limit          int               `json:"limit,omitempty"`          // Default: 50, at most 500
}

// Count is how many there are, as far as they were counted.
type Count struct {
	Count int64 `json:"count"`
	// More says that counting stopped, at [CountCap] or because it took too long: there may be more.
	More bool `json:"more,omitempty"`
}

// Event is an event without its payload.
type Event struct {
	OutboxID      int64         `json:"outboxId,string"`
	EventID       string        `json:"eventId"`
	EventType     string        `json:"eventType"`
	SchemaVersion int           `json:"schemaVersion"`
	AggregateType string        `json:"aggregateType"`
	AggregateID   string        `json:"aggregateId"`
	TenantID      int64         `json:"tenantId,string,omitempty"`
	StoreID       int64         `json:"storeId,string,omitempty"`
	Status        outbox.Status `json:"status"`
	TraceID       string        `json:"traceId,omitempty"`
	TraceURL      string        `json:"traceUrl,omitempty"` // by Config.TraceURL
	// IdempotencyKey is the one that the event was saved with, empty for none. Events of releases before migration 0010 have none.
	IdempotencyKey string     `json:"idempotencyKey,omitempty"`
	RequestID      string     `json:"requestId,omitempty"`
	UserID         string     `json:"userId,omitempty"`
	Source         string     `json:"source,omitempty"`   // the producer's metadata entry of that name
	Instance       string     `json:"instance,omitempty"` // that saved it
	LastError      string     `json:"lastError,omitempty"`
	LockedBy       string     `json:"lockedBy,omitempty"`
	Expired        int        `json:"expired,omitempty"` // leases that ran out
	CreatedAt      time.Time  `json:"createdAt"`
	UpdatedAt      time.Time  `json:"updatedAt"`
	SentAt         time.Time  `json:"sentAt,omitzero"`
	NextRetryAt    time.Time  `json:"nextRetryAt,omitzero"` // when it is due, or its lease ends
	Archived       bool       `json:"archived,omitempty"`
	Deleted        bool       `json:"deleted,omitempty"` // only its deliveries tell that it has been there
	Deliveries     []Delivery `json:"deliveries"`        // never nil; without History in a list
	// Truncated says that there are more deliveries, or attempts, of the events read with this one than are read at a time.
	Truncated bool `json:"truncated,omitempty"`
}

// Delivery is what became of an event at one consumer. A consumer that the registry expects and
// that has no row yet has the empty Status.
type Delivery struct {
	Consumer       string            `json:"consumer"`
	Status         consumelog.Status `json:"status"`
	Replay         bool              `json:"replay,omitempty"` // this is the repetition of a delivery, see [Ops.Replay]
	Attempts       int               `json:"attempts"`
	Error          string            `json:"error,omitempty"`
	IdempotencyKey string            `json:"idempotencyKey,omitempty"`
	Result         string            `json:"result,omitempty"` // JSON text, verbatim but for personal data
	LockedBy       string            `json:"lockedBy,omitempty"`
	CreatedAt      time.Time         `json:"createdAt,omitzero"`
	ConsumedAt     time.Time         `json:"consumedAt,omitzero"` // of a SUCCESS
	UpdatedAt      time.Time         `json:"updatedAt,omitzero"`
	NextRetryAt    time.Time         `json:"nextRetryAt,omitzero"`
	Left           bool              `json:"left,omitempty"`    // no instance that has seen it knows the schema version of its event
	History        []Attempt         `json:"history,omitempty"` // attempts that did not succeed, oldest first
	Registered     bool              `json:"registered"`        // some instance has had such a consumer within a day
}

// Attempt is one run of a delivery that did not succeed.
type Attempt struct {
	Attempt  int               `json:"attempt"`
	Outcome  consumelog.Status `json:"outcome"`
	Error    string            `json:"error"`
	Instance string            `json:"instance"`
	Duration time.Duration     `json:"durationNs"`
	At       time.Time         `json:"at"`
}

// Payload is what an event carries. It is read apart from everything else, because it may hold
// personal data.
type Payload struct {
	Payload  string `json:"payload"`  // JSON text, verbatim but for personal data
	Metadata string `json:"metadata"` // JSON text, verbatim but for personal data
	Redacted bool   `json:"redacted"` // something was hidden
}
