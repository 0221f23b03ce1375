package ops

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/origin"
	"github.com/bluecone-go/bluecone/internal/store/view"
	"github.com/bluecone-go/bluecone/internal/text"
	"github.com/bluecone-go/bluecone/outbox"
)

// The rules of the diagnosis, as [Finding.Rule] names them.
const (
	RuleHealthy      = "healthy"
	RuleMissingEvent = "missing_event" // a fact has lost its event
	RuleMissing      = "missing"       // a module of the host misses something
	RuleDead         = "dead"
	RuleFailing      = "failing" // it will be tried again
	RuleBehind       = "behind"  // an earlier event of the entity is in the way
	RuleStuck        = "stuck"
	RuleCrashing     = "crashing" // its leases run out
	RuleDelayed      = "delayed"  // by its producer
	RuleOutOfOrder   = "out_of_order"
	RuleUnconsumed   = "unconsumed" // nobody is registered for the type
	RuleUnregistered = "unregistered"
	RuleVersion      = "version"   // no running instance knows the schema version of an event
	RuleReplay       = "replay"    // no instance runs replays of the consumer
	RuleTypeGone     = "type_gone" // no running release of the consumer takes the type
	RulePast         = "past"      // a backfill has not come to the event yet
	RulePaused       = "paused"
	RuleCircuit      = "circuit"
	RuleLock         = "lock"
	RuleAmount       = "amount"
	RuleSection      = "section"     // a section of the host failed
	RuleReservation  = "reservation" // nobody sees the event, because it is reserved in the ledger
)

// fired makes a finding: says and remedy are formats of args, name by name.
func fired(rule string, level Level, e Event, consumer, says, remedy string, args map[string]string) Finding {
	if args == nil {
		args = make(map[string]string)
	}
	if e.EventID != "" {
		args["event"], args["type"], args["aggregate"] = e.EventID, e.EventType, e.AggregateType+" "+e.AggregateID
	}
	if consumer != "" {
		args["consumer"] = consumer
	}
	return Finding{
		Rule: rule, Level: level, Says: fill(says, args), Remedy: fill(remedy, inShell(args)), EventID: e.EventID, Consumer: consumer,
		Args: args,
	}
}

// Shell writes a value of [Finding.Args] as a remedy does: so that a command with it can be pasted into a shell,
// whatever somebody has written into the row that it comes from.
func Shell(value string) string { return text.Shell(value) }

func inShell(args map[string]string) map[string]string {
	quoted := make(map[string]string, len(args))
	for name, value := range args {
		quoted[name] = Shell(value)
	}
	return quoted
}

// fill replaces {name} by the value of that name. Times, which Args hold as RFC 3339, are written
// as people read them.
func fill(format string, args map[string]string) string {
	var pairs []string
	for name, value := range args {
		if t, err := time.Parse(time.RFC3339, value); err == nil {
			value = clock(t)
		}
		pairs = append(pairs, "{"+name+"}", value)
	}
	return strings.NewReplacer(pairs...).Replace(format)
}

func at(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// diagnose adds what the rules find, the worst first.
func (t *tracer) diagnose() {
	t.find(t.missingEvents()...)
	for i, e := range t.story.Events {
		t.find(t.eventRules(e)...)
		for _, d := range e.Deliveries {
			t.find(t.deliveryRules(e, d, t.story.Events[:i])...)
		}
	}
	t.find(pasts{t.known, t.story.Events, t.cfg.StuckAfter}.rules(t.fills)...)
	t.find(t.outOfOrder()...)
	for _, r := range t.story.Reservations {
		t.find(reservationRules(r)...)
	}
	for _, s := range t.story.Sections {
		t.find(t.sectionRules(s)...)
	}
	rank := map[Level]int{Bad: 0, Warn: 1, Info: 2, OK: 3}
	slices.SortStableFunc(t.story.Findings, func(a, b Finding) int { return rank[a.Level] - rank[b.Level] })
	if len(t.story.Findings) == 0 {
		t.find(t.healthy())
	}
}

func (t *tracer) healthy() Finding {
	events := t.story.Events
	if len(events) == 0 {
		return Finding{Rule: RuleHealthy, Level: OK, Says: "Nothing is known to be wrong, and there are no events."}
	}
	last := events[len(events)-1]
	return fired(RuleHealthy, OK, Event{}, "",
		"All is well: each of the {n} events has reached its consumers; the last was {type}, saved {at}.", "",
		map[string]string{"n": strconv.Itoa(len(events)), "type": last.EventType, "at": at(last.CreatedAt)})
}

// missingEvents are facts that have lost their event.
func (t *tracer) missingEvents() (out []Finding) {
	for _, check := range slices.Sorted(maps.Keys(t.lacks)) {
		for _, fact := range t.lacks[check] {
			out = append(out, fired(RuleMissingEvent, Bad, Event{}, "",
				"The event that the check {check} demands of {fact} was never saved, so no consumer knows of it.",
				"Let the consistency job save it now: bluecone jobs run order_asset_consistency, or Run now on the page Jobs. For one event only: "+
					"bluecone publish, or the page Publish.",
				map[string]string{"check": check, "fact": fact}))
		}
	}
	return out
}

// eventRules look at the event's own row.
func (t *tracer) eventRules(e Event) (out []Finding) {
	now, stuck := t.known.at, t.cfg.StuckAfter
	switch waited := now.Sub(e.NextRetryAt); {
	case e.Status == outbox.StatusNew && now.Sub(e.CreatedAt) > stuck:
		out = append(out, fired(RuleStuck, Bad, e, "", "{type} of {aggregate} has been NEW since {since}: no publisher claims it.",
			"See on the page Instances, or with bluecone status, whether a publisher runs, and start one; if one runs, bluecone doctor says what "+
				"keeps it from claiming.", map[string]string{"since": at(e.CreatedAt)}))
	case e.Status == outbox.StatusDispatching && waited > stuck:
		out = append(out,
			fired(RuleStuck, Bad, e, "", "{type} of {aggregate} was claimed by {instance}, whose lease ended {until}, and nobody has claimed it "+
				"again.",
				"See on the page Instances, or with bluecone status, whether a publisher runs: any one takes the event over by itself.",
				map[string]string{"instance": e.LockedBy, "until": at(e.NextRetryAt)}))
	case e.Status == outbox.StatusScheduled && waited > stuck:
		out = append(out, fired(RuleStuck, Bad, e, "", "{type} of {aggregate} has been due since {since}, and no publisher claims it.",
			"See on the page Instances, or with bluecone status, whether a publisher runs, and start one.",
			map[string]string{"since": at(e.NextRetryAt)}))
	case e.Status == outbox.StatusScheduled && len(t.known.expected(Event{EventType: e.EventType})) == 0 && e.LastError != "":
		out = append(out,
			fired(RuleUnconsumed, Warn, e, "", "No consumer is registered for {type}: the event of {aggregate} has been parked since {since}.",
				"Deploy the consumer, or declare the type with Bus.Unconsumed; to give the event up: bluecone events discard {event} --reason …, or "+
					"Discard on its page.", map[string]string{"since": at(e.CreatedAt)}))
	case e.Status == outbox.StatusScheduled && e.NextRetryAt.After(now):
		out = append(out, fired(RuleDelayed, Info, e, "", "{type} of {aggregate} is to be delivered at {due}.", "",
			map[string]string{"due": at(e.NextRetryAt)}))
	case e.Status == outbox.StatusFailed && now.Sub(e.UpdatedAt) > stuck &&
		!slices.ContainsFunc(e.Deliveries, func(d Delivery) bool { return d.Status.Waiting() }):
		out = append(out,
			fired(RuleStuck, Warn, e, "", "{type} of {aggregate} has been FAILED since {since} although none of its deliveries waits.",
				"A publisher corrects this within a minute: see on the page Instances, or with bluecone status, whether one runs.",
				map[string]string{"since": at(e.UpdatedAt)}))
	}
	if e.Expired >= 3 && e.Status != outbox.StatusSent {
		out = append(out,
			fired(RuleCrashing, Warn, e, "", "The lease of {type} of {aggregate} ran out {n} times: a consumer of it may be ending or freezing "+
				"its process.",
				"Each consumer now gets the event alone. Look for crashes in the logs of the instances around these times, and for the consumer "+
					"whose attempts have no answer.", map[string]string{"n": strconv.Itoa(e.Expired)}))
	}
	return out
}

const retryRemedy = "Fix the cause, then: bluecone events retry {event} --consumer {consumer} --reason …, or Retry on the page of the " +
	"event. To give it up: bluecone events skip {event} --consumer {consumer} --reason …"

// deliveryRules look at one delivery, and whether earlier events are in its way.
func (t *tracer) deliveryRules(e Event, d Delivery, earlier []Event) []Finding {
	now, stuck := t.known.at, t.cfg.StuckAfter
	switch {
	case d.Status == consumelog.Dead:
		return []Finding{fired(RuleDead, Bad, e, d.Consumer, "{consumer} gave up {type} of {aggregate} at {at} after {n}: {error}.", retryRemedy,
			map[string]string{"at": at(d.UpdatedAt), "n": attempts(d.Attempts), "error": firstLine(d.Error)})}
	case d.Status == consumelog.Processing && now.Sub(d.NextRetryAt) > stuck:
		return []Finding{fired(RuleStuck, Bad, e, d.Consumer,
			"{instance} has {type} of {aggregate} in flight for {consumer}, and its lease ended {until}.",
			"Any instance with this consumer takes the delivery over by itself: see on the page Instances, or with bluecone consumers list, "+
				"whether one runs.", map[string]string{"instance": d.LockedBy, "until": at(d.NextRetryAt)})}
	case d.Status == consumelog.Success || d.Status == consumelog.Skipped || d.Status == consumelog.Processing:
		return nil
	}
	if d.Status == "" && (e.Status == outbox.StatusNew || e.Status == outbox.StatusDispatching || e.Status == outbox.StatusScheduled) {
		return nil // its turn is still to come
	}
	if f, ok := t.consumerRules(e, d); ok {
		return []Finding{f}
	}
	if f, ok := t.known.releaseRules(e, d); ok {
		return []Finding{f}
	}
	if before, ok := inTheWay(e, d, earlier); ok {
		return []Finding{fired(RuleBehind, Warn, e, d.Consumer, "{type} of {aggregate} waits for {consumer} behind the earlier {earlier} "+
			"(event {earlierEvent}), which {consumer} has not done.",
			"Settle the earlier event first: bluecone events show {earlierEvent}, or its page.", map[string]string{
				"earlier":      before.EventType,
				"earlierEvent": before.EventID,
			})}
	}
	return t.waitingRules(e, d)
}

// waitingRules look at a delivery that waits although neither its consumer nor an earlier event is the reason.
func (t *tracer) waitingRules(e Event, d Delivery) []Finding {
	now, stuck := t.known.at, t.cfg.StuckAfter
	switch {
	case d.Left && now.Sub(d.UpdatedAt) > stuck:
		return []Finding{fired(RuleVersion, Bad, e, d.Consumer, "{type} of {aggregate} has waited for {consumer} since {since}: no running "+
			"instance knows schema version {version} of the event.",
			"Start an instance of the release that knows the version: the delivery goes on by itself. To give it up: bluecone events skip "+
				"{event} --consumer {consumer} --reason …, or Outbox.MarkDead.",
			map[string]string{"since": at(d.UpdatedAt), "version": strconv.Itoa(e.SchemaVersion)})}
	case d.Left:
		return nil // an instance that knows the version looks for it every second
	case d.Status == consumelog.Failed:
		return []Finding{fired(RuleFailing, Warn, e, d.Consumer,
			"{consumer} failed with {type} of {aggregate}, {n} so far, and tries again at {next}: {error}.",
			"Nothing has to be done if the cause passes. To try at once: bluecone events retry {event} --consumer {consumer} --reason …, or "+
				"Retry on the page of the event.",
			map[string]string{"n": attempts(d.Attempts), "next": at(d.NextRetryAt), "error": firstLine(d.Error)})}
	case d.Status == consumelog.Pending && now.Sub(d.NextRetryAt) > stuck:
		return []Finding{fired(RuleStuck, Warn, e, d.Consumer,
			"{type} of {aggregate} has waited for {consumer} since {since}, and nothing is in its way: the consumer is behind.",
			"See its queue on the page Consumers, or with bluecone consumers list; more Concurrency, or more instances, work it off.",
			map[string]string{"since": at(d.CreatedAt)})}
	}
	return nil
}

func attempts(n int) string {
	if n == 1 {
		return "1 attempt"
	}
	return strconv.Itoa(n) + " attempts"
}

// consumerRules say that a delivery waits because of what its consumer does.
func (t *tracer) consumerRules(e Event, d Delivery) (Finding, bool) {
	r, ok := t.known.find(d.Consumer)
	if e.EventType == origin.Undecodable { // its inbox is no consumer
		return Finding{}, false
	}
	if !ok || r.age > view.Announced {
		seen := "no instance has ever announced it"
		if ok {
			seen = "last announced " + clock(r.seenAt)
		}
		return fired(RuleUnregistered, Bad, e, d.Consumer, "{type} of {aggregate} waits for {consumer}, which no instance runs ({seen}).",
			"Start an instance that has the consumer. If it was renamed, give its successor this name as ConsumerConfig.Key. If it is gone for "+
				"good, retire it: bluecone consumers retire {consumer} --reason …, and skip this delivery: "+
				"bluecone events skip {event} --consumer {consumer} --reason …",
			map[string]string{"seen": seen}), true
	}
	replays := t.known.replays[r.name]
	if d.Replay && replays.paused && !r.paused {
		r.paused, r.pausedBy, r.pausedUntil, r.pauseReason, r.name = true, replays.pausedBy, replays.pausedUntil, replays.pauseReason,
			replays.name
	}
	if r.paused {
		until := "until it is resumed"
		if !forever(t.known.at, r.pausedUntil) {
			until = "until " + clock(r.pausedUntil)
		}
		return fired(RulePaused, Warn, e, d.Consumer, "{type} of {aggregate} waits because {by} paused {consumer} {until}: {reason}.",
			"When the reason is over: bluecone consumers resume {paused} --reason …, or Resume on the page Consumers.",
			map[string]string{"by": r.pausedBy, "until": until, "reason": firstLine(r.pauseReason), "paused": r.name}), true
	}
	if in := t.known.broken[d.Consumer]; len(in) > 0 {
		return fired(RuleCircuit, Warn, e, d.Consumer,
			"{type} of {aggregate} waits because what {consumer} calls is away, as {instance} has found: {error}.",
			"Bring back what it calls: the consumer tries again by itself, and no attempt counts meanwhile.",
			map[string]string{"instance": in[0], "error": firstLine(d.Error)}), true
	}
	return Finding{}, false
}

// inTheWay finds the first earlier event of the entity that the consumer has not done. An event of
// a type that it does not take has no delivery to it.
func inTheWay(e Event, d Delivery, earlier []Event) (Event, bool) {
	for _, before := range earlier {
		if before.AggregateType != e.AggregateType || before.AggregateID != e.AggregateID || before.Status == outbox.StatusSent {
			continue
		}
		for _, other := range before.Deliveries {
			if other.Consumer == d.Consumer && !other.Status.Done() {
				return before, true
			}
		}
	}
	return Event{}, false
}

// outOfOrder finds deliveries of an entity that a consumer has done after later ones.
func (t *tracer) outOfOrder() (out []Finding) {
	type lane struct{ consumer, kind, id string }
	type done struct {
		event Event
		at    time.Time
	}
	latest := make(map[lane]done)
	for _, e := range slices.Backward(t.story.Events) { // from the last saved
		for _, d := range e.Deliveries {
			if d.Status != consumelog.Success || d.Replay {
				continue
			}
			key := lane{d.Consumer, e.AggregateType, e.AggregateID}
			later, ok := latest[key]
			if ok && d.ConsumedAt.After(later.at) {
				out = append(out, fired(RuleOutOfOrder, Warn, e, d.Consumer, "{consumer} did {type} of {aggregate} at {at}, after the later {later} "+
					"(event {laterEvent}), which it had done at {laterAt}.",
					"If the consumer is meant to be Unordered, or passes DEAD events, this is as it should be. If not, look whether somebody skipped "+
						"or repaired the earlier event, and check what the consumer wrote.",
					map[string]string{"at": at(d.ConsumedAt), "later": later.event.EventType, "laterEvent": later.event.EventID, "laterAt": at(later.at)}))
			}
			if !ok || d.ConsumedAt.Before(later.at) {
				latest[key] = done{e, d.ConsumedAt}
			}
		}
	}
	return out
}

// sectionRules look at what a module of the host knows.
func (t *tracer) sectionRules(s Facts) []Finding {
	out := slices.Clone(s.Findings)
	for _, l := range s.Locks {
		if held := t.known.at.Sub(l.Since); held > l.TTL {
			out = append(out, t.heldTooLong(s, l, held))
		}
	}
	for _, a := range s.Amounts {
		if a.Want == a.Have {
			continue
		}
		says := "{section}: {name} should be {want} and is {have}, {difference} apart."
		if a.Says != "" {
			says = "{section}: {name} should be {want} and is {have}: {said}."
		}
		out = append(out, fired(RuleAmount, Bad, Event{}, "", says, "Compare the entries of the section with the results of the consumers "+
			"below. Do not correct the amount by hand before you know which of the two is right.",
			map[string]string{
				"section": s.Title, "name": a.Name, "want": strconv.FormatInt(a.Want, 10), "have": strconv.FormatInt(a.Have, 10),
				"difference": strconv.FormatInt(a.Have-a.Want, 10), "said": a.Says,
			}))
	}
	for _, m := range s.Missing {
		out = append(out, fired(RuleMissing, Bad, Event{}, "", "{section}: {said}.", "Look in the matrix below which delivery should have "+
			"done it; retry it if it has not, replay it if the consumer is Replayable.",
			map[string]string{"section": s.Title, "said": firstLine(m)}))
	}
	return out
}

// heldTooLong says why a lock has not been released.
func (t *tracer) heldTooLong(s Facts, l Lock, held time.Duration) Finding {
	args := map[string]string{"section": s.Title, "lock": l.Name, "since": at(l.Since), "held": round(held), "ttl": round(l.TTL)}
	i := slices.IndexFunc(t.story.Events, l.isHeldBy)
	if i < 0 {
		return fired(RuleLock, Warn, Event{}, "", "{section}: {lock} has been held since {since}, {held}, longer than {ttl}, and no event is "+
			"under way that would settle it.",
			"Let the reaper release it now: bluecone jobs run lock_timeout_reaper, or Run now on the page Jobs.", args)
	}
	e := t.story.Events[i]
	args["status"] = string(e.Status)
	return fired(RuleLock, Warn, e, "", "{section}: {lock} has been held since {since}, {held}, longer than {ttl}: the reaper leaves it "+
		"alone because {type} of {aggregate} is {status}.",
		"Settle the event first: bluecone events show {event}, or its page. The reaper releases what is then still held.", args)
}

func round(d time.Duration) string {
	switch {
	case d > 48*time.Hour:
		return fmt.Sprintf("%d days", int(d.Hours()/24))
	case d > 2*time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	case d > 2*time.Minute:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	}
	return fmt.Sprintf("%d s", int(d.Seconds()))
}
