package rawevent

import "time"

// Parts are an event, and what was said about it beside what its type knows.
type Parts struct {
	Event             any
	TenantID, StoreID int64
	DeliverAt         time.Time
	Metadata          map[string]string
}

// Whole is an event that has such parts.
type Whole interface{ Parts() Parts }
