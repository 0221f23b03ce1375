package store

import "strings"

// Status is the state of a delivery, as its row has it.
type Status string

// The states of a delivery. Users see them as those of consumelog.
const (
	// Pending waits for its consumer without having failed.
	Pending Status = "PENDING"
	// Processing is leased by an instance until next_retry_at.
	Processing Status = "PROCESSING"
	// Failed waits for its next attempt.
	Failed Status = "FAILED"
	// Success is done; the effect and this row committed together.
	Success Status = "SUCCESS"
	// Dead waits for an operator.
	Dead Status = "DEAD"
	// Skipped is closed without an effect, with a reason.
	Skipped Status = "SKIPPED"
)

// Waiting reports whether the engine itself will still work on the delivery.
func (s Status) Waiting() bool { return s == Pending || s == Processing || s == Failed }

// Done reports whether the delivery is over for good.
func (s Status) Done() bool { return s == Success || s == Skipped }

// replaySuffix cannot be part of a consumer's name.
const replaySuffix = "@replay"

// ReplayName is the key under which the log keeps the replays of a consumer.
func ReplayName(consumer string) string { return consumer + replaySuffix }

// IsReplay reports whether a key is one of replays.
func IsReplay(key string) bool { return strings.HasSuffix(key, replaySuffix) }

// ReplayOf is the consumer that a key stands for, whether or not it is one of replays.
func ReplayOf(key string) string { return strings.TrimSuffix(key, replaySuffix) }
