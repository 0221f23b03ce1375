// Package telemetry names what bluecone logs, counts and traces. Only the
// OpenTelemetry API is used: without an SDK in the program it costs next to nothing.
package telemetry

// Scope is the instrumentation scope of every tracer and meter.
const Scope = "github.com/bluecone-go/bluecone"

// Keys of log and span attributes.
const (
	EventID       = "eventId"
	EventType     = "eventType"
	Consumer      = "consumer"
	AggregateType = "aggregateType"
	AggregateID   = "aggregateId"
	Attempt       = "attempt"
	Status        = "status"
	TraceID       = "traceId"
	RequestID     = "requestId"
	Instance      = "instance"
	Count         = "count"
	Delay         = "delay"
	Took          = "took"
	QueueTime     = "queueTimeMs"
	Err           = "error"
	Reason        = "reason"
	Stack         = "stack"
	Version       = "schemaVersion"
)
