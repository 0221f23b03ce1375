package ops

import (
	"slices"
	"strconv"
	"time"

	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/store/view"
	"github.com/bluecone-go/bluecone/outbox"
)

// behindAfter is the age of the oldest event that is due at which a deployment counts as behind.
const behindAfter = time.Minute

// The rules of [Overview.Health], beside [RuleHealthy], [RuleUnregistered], [RuleTypeGone], [RuleReplay], [RulePast], [RulePaused],
// [RuleCircuit] and [RuleDead].
const (
	RuleNobody = "nobody" // no publisher runs, and events wait
	RuleLate   = "late"   // the oldest event has waited for too long
)

// health is the worst that an overview shows, in one sentence.
func health(v Overview, work []view.Unattended) Finding {
	waiting := v.Events[outbox.StatusNew].Count + v.Events[outbox.StatusDispatching].Count + v.Events[outbox.StatusFailed].Count
	alive := 0
	for _, i := range v.Instances {
		if i.Alive {
			alive++
		}
	}
	if alive == 0 && waiting > 0 {
		says := one(Count{Count: waiting}, "No publisher runs, and {n} event waits, for {oldest}.",
			"No publisher runs, and {n} events wait; the oldest for {oldest}.")
		return fired(RuleNobody, Bad, Event{}, "", says,
			"Start an instance of the application; the page Instances tells which was seen last.",
			map[string]string{"n": strconv.FormatInt(waiting, 10), "oldest": round(v.Oldest)})
	}
	if f, ok := consumerHealth(v, Unregistered); ok {
		return f
	}
	if f, ok := unattended(work, view.GoneType, view.GoneReplay, view.FailedPast); ok {
		return f
	}
	if n := v.Events[outbox.StatusDead]; n.Count > 0 {
		args := map[string]string{"n": number(n)}
		says := one(n, "{n} event is DEAD and waits for somebody to decide.", "{n} events are DEAD and wait for somebody to decide.")
		if len(v.Dead) > 0 {
			g := v.Dead[0]
			args["consumer"], args["type"], args["error"] = g.Consumer, g.EventType, g.Error
			says = one(n, "{n} event is DEAD and waits for somebody to decide, {type} for {consumer}: {error}.",
				"{n} events are DEAD and wait for somebody to decide, most of them for {consumer} with {type}: {error}.")
		}
		return fired(RuleDead, Bad, Event{}, "", says,
			"Fix the cause, then retry the group: the page Dead letters, or bluecone dead list and bluecone dead retry.", args)
	}
	for _, s := range []State{CircuitOpen, Paused} {
		if f, ok := consumerHealth(v, s); ok {
			return f
		}
	}
	if f, ok := unattended(work, view.StuckPast); ok {
		return f
	}
	if v.Oldest > behindAfter {
		return fired(RuleLate, Warn, Event{}, "", "The engine is behind: the oldest event has waited for {oldest}.",
			"The page Consumers, or bluecone consumers list, tells which consumer has the longest queue.",
			map[string]string{"oldest": round(v.Oldest)})
	}
	return Finding{Rule: RuleHealthy, Level: OK, Says: "Healthy."}
}

// consumerHealth finds a consumer in the given state for which deliveries wait.
func consumerHealth(v Overview, s State) (Finding, bool) {
	for _, c := range v.Consumers {
		waits := Count{Count: c.Waiting.Count + c.Failed.Count, More: c.Waiting.More || c.Failed.More}
		if c.State != s || waits.Count == 0 {
			continue
		}
		args := map[string]string{"n": number(waits), "by": c.PausedBy, "reason": c.PauseReason, "oldest": round(c.Oldest)}
		switch s {
		case Unregistered:
			says := one(waits, "{n} delivery waits for {consumer}, which no instance runs, for {oldest}.",
				"{n} deliveries wait for {consumer}, which no instance runs; the oldest for {oldest}.")
			return fired(RuleUnregistered, Bad, Event{}, c.Name, says, "Start an instance that has the consumer, or retire it. "+
				"If it was renamed, give its successor this name as ConsumerConfig.Key.", args), true
		case CircuitOpen:
			says := one(waits, "{n} delivery waits because what {consumer} calls is away.",
				"{n} deliveries wait because what {consumer} calls is away.")
			return fired(RuleCircuit, Warn, Event{}, c.Name, says, "Bring it back: the consumer tries again by itself.", args), true
		case Paused:
			says := one(waits, "{n} delivery waits because {by} paused {consumer}: {reason}.",
				"{n} deliveries wait because {by} paused {consumer}: {reason}.")
			return fired(RulePaused, Warn, Event{}, c.Name, says,
				"When the reason is over: bluecone consumers resume {consumer} --reason …", args), true
		case Running:
		}
	}
	return Finding{}, false
}

// unattended says what nobody works on, of the first of some kinds that there is.
func unattended(work []view.Unattended, kinds ...view.UnattendedKind) (Finding, bool) {
	for _, kind := range kinds {
		i := slices.IndexFunc(work, func(u view.Unattended) bool { return u.Kind == kind })
		if i < 0 {
			continue
		}
		u := work[i]
		n := Count{Count: u.Count, More: u.Count >= view.Front}
		args := map[string]string{"n": number(n), "of": consumelog.ReplayOf(u.Consumer), "since": at(u.Since)}
		switch kind {
		case view.GoneType:
			args["type"] = u.EventType
			says := one(n, "{n} delivery of {type} waits for {consumer}, and no running release of it takes the type.",
				"{n} deliveries of {type} wait for {consumer}, and no running release of it takes the type.")
			return fired(RuleTypeGone, Bad, Event{}, u.Consumer, says, "Start a release in which the consumer takes the type: what waits goes on "+
				"by itself. To give it up, skip the deliveries on the page Events; so that new events do not wait: bluecone consumers retire {of} "+
				"--type {type} --reason …", args), true
		case view.GoneReplay:
			says := one(n, "{n} replay waits for {of}, of which no instance runs replays (any more).",
				"{n} replays wait for {of}, of which no instance runs replays (any more).")
			return fired(RuleReplay, Bad, Event{}, u.Consumer, says, "Start a release in which the consumer is bus.ConsumerConfig.Replayable: what "+
				"waits goes on by itself. To give a replay up: bluecone events skip EVENT-ID --consumer {consumer} --reason …", args), true
		case view.FailedPast:
			args["state"] = string(BulkFailed)
			return fired(RulePast, Bad, Event{}, u.Consumer, "A backfill of {consumer} is {state}, and later events of its aggregates wait for it.",
				"See why with bluecone bulk list, or on the page Bulk operations; then bluecone bulk resume, or bluecone bulk cancel, after which "+
					"nothing waits for the past.", args), true
		case view.StuckPast:
			return fired(RulePast, Warn, Event{}, u.Consumer,
				"A backfill of {consumer} has not moved since {since}, and later events of its aggregates wait for it.",
				"See that a process calls ops.Run, which does an operator's backfill, or, for StartFrom, that a publisher of a release that knows it "+
					"has the consumer. Without the past: bluecone bulk cancel.", args), true
		}
	}
	return Finding{}, false
}

func number(c Count) string {
	if c.More {
		return strconv.FormatInt(c.Count, 10) + "+"
	}
	return strconv.FormatInt(c.Count, 10)
}

// one chooses the sentence about a single thing, or that about several.
func one(n Count, single, several string) string {
	if n.Count == 1 && !n.More {
		return single
	}
	return several
}
