package alert

import (
	"fmt"
	"time"
)

// The rules. Each is also the anchor of its section in the runbook.
const (
	RuleDead         = "dead"
	RuleLate         = "late"
	RuleLag          = "lag"
	RuleFailures     = "failures"
	RuleStalled      = "stalled"
	RuleUnconsumed   = "unconsumed"
	RuleCircuit      = "circuit"
	RulePaused       = "paused"
	RuleUnregistered = "unregistered"
	RuleVersion      = "version"
	RuleReplay       = "replay"
	RuleTypeGone     = "type_gone"
	RulePast         = "past"
	RuleReservation  = "reservation"
	RuleJobLate      = "job_late"
	RuleJobFailed    = "job_failed"
	RuleRepairs      = "repairs"
	RuleClock        = "clock"
)

// Rule is a condition that is looked for.
type Rule struct {
	Code   string // durable, and the anchor of its section in the runbook
	Level  Level  // that it begins with
	Remedy string // what to do, in one sentence
}

// Rules lists every rule, with the level that it begins with.
func Rules() []Rule {
	return []Rule{
		{RuleDead, Critical, "find out why (the error of the delivery), fix the cause, then retry or skip the deliveries"},
		{RuleLate, Warn, "see that instances run and the database answers, and look for handlers that are slow"},
		{RuleLag, Warn, "look at the errors of the consumer's waiting deliveries: it fails, is slow, is paused, or waits behind a DEAD delivery"},
		{RuleFailures, Warn, "look at the errors of its latest attempts: most likely one cause, in the handler or in what it calls"},
		{RuleStalled, Critical, "see that at least one instance runs a publisher and reaches the database"},
		{RuleUnconsumed, Warn, "deploy the consumer of this event type, or declare the type with Bus.Unconsumed"},
		{RuleCircuit, Warn, "see whether what the consumer calls can be reached and whether its tables are migrated"},
		{RulePaused, Warn, "resume the consumer if what it was paused for is over"},
		{RuleUnregistered, Warn, "start an instance that has the consumer, or retire it"},
		{RuleVersion, Warn, "start an instance of the release that knows the schema version, or skip the deliveries"},
		{RuleReplay, Warn, "start a release in which the consumer is Replayable, or skip the replays"},
		{RuleTypeGone, Warn, "start a release of the consumer that takes the type, or skip the deliveries and retire the type"},
		{RulePast, Warn, "see with bluecone bulk list why, then resume or cancel the operation; see that a process calls ops.Run, or, " +
			"for StartFrom, that a publisher of a release that knows it has the consumer"},
		{RuleReservation, Warn, "see that a ledger runs and reaches the producer's check URL, or confirm or cancel the reservations"},
		{RuleJobLate, Critical, "see that an instance with this job runs, and whether one run hangs"},
		{RuleJobFailed, Warn, "look at the error of the job's last run"},
		{RuleRepairs, Critical, "find out which code path saves the fact without its event before you let the check repair more"},
		{RuleClock, Warn, "run NTP on this machine and on the database's: the bus goes by the database's clock, but logs, traces and webhook " +
			"signatures do not"},
	}
}

func ruleOf(code string) Rule {
	for _, r := range Rules() {
		if r.Code == code {
			return r
		}
	}
	return Rule{Code: code, Level: Warn}
}

// signal is a condition that holds now.
type signal struct {
	rule, consumer, eventType string
	subject                   string // what else tells it from others of its rule
	says                      string
	count                     int64
	since                     int64 // microseconds since the epoch; 0 is now
}

// about is the subject in words.
func (s signal) about() string {
	switch {
	case s.subject != "":
		return s.subject
	case s.consumer != "" && s.eventType != "":
		return s.consumer + " " + s.eventType
	case s.consumer != "":
		return s.consumer
	}
	return s.eventType
}

// upTo is a count in words.
func upTo(n int64, one, many string) string {
	switch {
	case n > countCap:
		return fmt.Sprintf("more than %d %s", countCap, many)
	case n == 1:
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// span is a duration that a person reads.
func span(d time.Duration) string {
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%d days", int(d.Hours()/24))
	case d >= 2*time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	case d >= 2*time.Minute:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	}
	return d.Round(time.Second / 10).String()
}
