package alert

import (
	"context"
	"time"
)

// Level says how urgent an alert is.
type Level string

// The levels of an alert.
const (
	Warn     Level = "WARN"
	Critical Level = "CRITICAL"
)

// Kind says why a message is sent.
type Kind string

// The kinds of messages.
const (
	Firing    Kind = "FIRING"    // something has become wrong
	Escalated Kind = "ESCALATED" // its level has risen
	Reminder  Kind = "REMINDER"  // it still is
	Resolved  Kind = "RESOLVED"  // it is over
)

// Notice is one message.
type Notice struct {
	ID          string    `json:"id"` // the same whenever the message is sent again
	Kind        Kind      `json:"kind"`
	Level       Level     `json:"level"`
	Rule        string    `json:"rule"`    // one of Rules
	Subject     string    `json:"subject"` // what it is about, such as a consumer
	Consumer    string    `json:"consumer,omitempty"`
	EventType   string    `json:"eventType,omitempty"`
	Service     string    `json:"service,omitempty"`
	Environment string    `json:"environment,omitempty"`
	Says        string    `json:"says"`  // what is wrong, in one sentence
	Count       int64     `json:"count"` // how many things are, at most 10001, which means more
	Since       time.Time `json:"since"`
	Remedy      string    `json:"remedy"`
	Link        string    `json:"link,omitempty"` // Config.Link
	Runbook     string    `json:"runbook"`
}

// Sink takes messages to people.
type Sink interface {
	// Send delivers a message, or says why it could not. ctx ends after Config.SendTimeout.
	Send(ctx context.Context, n Notice) error
}

// SinkFunc is a function as a [Sink].
type SinkFunc func(ctx context.Context, n Notice) error

// Send calls the function.
func (f SinkFunc) Send(ctx context.Context, n Notice) error { return f(ctx, n) }
