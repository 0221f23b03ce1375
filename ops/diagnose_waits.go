package ops

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/bluecone-go/bluecone/internal/origin"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/store/view"
	"github.com/bluecone-go/bluecone/outbox"
)

// releaseRules say that a delivery waits because no running release of its consumer, which runs, wants it.
func (k known) releaseRules(e Event, d Delivery) (Finding, bool) {
	r, ok := k.find(d.Consumer)
	if !ok || d.Status == "" || e.EventType == origin.Undecodable { // its inbox is no consumer
		return Finding{}, false
	}
	if !r.takes(e.EventType) {
		return fired(RuleTypeGone, Bad, e, d.Consumer, "{type} of {aggregate} waits for {consumer}, and no running release of it takes the type.",
			"Start a release in which the consumer takes the type: the delivery goes on by itself. To give it up: bluecone events skip {event} "+
				"--consumer {consumer} --reason …, or Skip on the page of the event. So that new events of the type do not wait: bluecone "+
				"consumers retire {consumer} --type {type} --reason …", nil), true
	}
	if replays, runs := k.replays[r.name]; d.Replay && (!runs || replays.age > view.Announced) {
		return fired(RuleReplay, Bad, e, d.Consumer,
			"A replay of {type} of {aggregate} waits for {of}, of which no instance runs replays (any more).",
			"Start a release in which the consumer is bus.ConsumerConfig.Replayable: the replay goes on by itself. To give it up: bluecone events "+
				"skip {event} --consumer {consumer} --reason …, or Skip on the page of the event.", map[string]string{"of": r.name}), true
	}
	return Finding{}, false
}

// pasts looks for events of a story to which backfills have not come.
type pasts struct {
	known      known
	events     []Event
	stuckAfter time.Duration
}

// rules find, of each consumer with an open backfill, the first event of the story that it has not come to.
func (p pasts) rules(open []view.Backfill) (out []Finding) {
	told := make(map[string]bool)
	for _, b := range open {
		r, ok := p.known.find(b.Consumer)
		if !ok || told[b.Consumer] {
			continue
		}
		i := slices.IndexFunc(p.events, func(e Event) bool {
			return isPast(b, r, e) && (isAbout(b, e) || p.holdsLater(b, e))
		})
		if i >= 0 {
			told[b.Consumer] = true
			out = append(out, p.found(b, p.events[i]))
		}
	}
	return out
}

// found says what an event waits for that a backfill has not come to.
func (p pasts) found(b view.Backfill, e Event) Finding {
	const has, later = "{consumer} has not had {type} of {aggregate}: an open backfill", " Later events of the aggregate wait for it."
	switch {
	case b.State != string(BulkRunning):
		return fired(RulePast, Bad, e, b.Consumer, has+", which is {state}, has not come to it."+later,
			"See why with bluecone bulk list, or on the page Bulk operations; then bluecone bulk resume, or bluecone bulk cancel, after which "+
				"nothing waits for the past.", map[string]string{"state": b.State})
	case p.known.at.Sub(b.UpdatedAt) > p.stuckAfter && b.Action == store.ActionStart:
		return fired(RulePast, Warn, e, b.Consumer, has+" has not come to it, and has not moved since {since}."+later,
			"A publisher gives the past of a consumer with StartFrom, at the pace of its handlers: see with bluecone consumers list whether an "+
				"instance runs it, and how long its queue is. Without the past: bluecone bulk cancel.", map[string]string{"since": at(b.UpdatedAt)})
	case p.known.at.Sub(b.UpdatedAt) > p.stuckAfter:
		return fired(RulePast, Warn, e, b.Consumer, has+" has not come to it, and has not moved since {since}."+later,
			"Bulk operations are done by ops.Run: see whether a process calls it, and start one. Without the past: bluecone bulk cancel.",
			map[string]string{"since": at(b.UpdatedAt)})
	}
	return fired(RulePast, Info, e, b.Consumer, has+" has not come to it."+later, "", nil)
}

// isPast reports whether a backfill has not come to an event that its consumer takes and has never had.
func isPast(b view.Backfill, r registration, e Event) bool {
	has := func(d Delivery) bool { return d.Consumer == b.Consumer && d.Status != "" }
	switch e.Status {
	case outbox.StatusSent, outbox.StatusFailed, outbox.StatusDead: // others get to the consumer by themselves
	default:
		return false
	}
	return !e.Archived && !e.Deleted && e.OutboxID > b.Reached && (b.UpTo == 0 || e.OutboxID <= b.UpTo) &&
		slices.Contains(r.types, e.EventType) && !slices.ContainsFunc(e.Deliveries, has)
}

// isAbout reports whether a backfill may give an event, as far as the event's own row says.
func isAbout(b view.Backfill, e Event) bool {
	var asked request
	if err := json.Unmarshal([]byte(b.Request), &asked); err != nil {
		return true // it was cut, and nobody knows
	}
	q := asked.Query
	return (q.EventID == "" || q.EventID == e.EventID) && (q.EventType == "" || q.EventType == e.EventType) &&
		(q.AggregateType == "" || q.AggregateType == e.AggregateType) && (q.AggregateID == "" || q.AggregateID == e.AggregateID) &&
		(q.TenantID == 0 || q.TenantID == e.TenantID) && (len(asked.Tenants) == 0 || slices.Contains(asked.Tenants, e.TenantID)) &&
		(q.Since.IsZero() || !e.CreatedAt.Before(q.Since)) && (q.Until.IsZero() || e.CreatedAt.Before(q.Until))
}

// holdsLater reports whether a later event of the aggregate waits for the consumer of a backfill.
func (p pasts) holdsLater(b view.Backfill, past Event) bool {
	return slices.ContainsFunc(p.events, func(e Event) bool {
		return e.OutboxID > past.OutboxID && e.AggregateType == past.AggregateType && e.AggregateID == past.AggregateID &&
			e.TenantID == past.TenantID && slices.ContainsFunc(e.Deliveries, func(d Delivery) bool {
			return d.Consumer == b.Consumer && d.Status.Waiting()
		})
	})
}
