package ops

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/store/view"
	"github.com/bluecone-go/bluecone/internal/text"
)

// Trace tells the story of an event id, aggregate id ("7" or "ORDER/7"), idempotency key or trace id:
// the events of the entity and those of the same traces. It answers [ErrNotFound] if nobody knows
// the key.
func (o *Ops) Trace(ctx context.Context, key string) (Story, error) {
	key = strings.TrimSpace(key)
	if err := asInvalid(text.Key("ops: key", key, longest)); err != nil {
		return Story{}, err
	}
	t := &tracer{cfg: o.cfg, searcher: o.search, seen: make(map[string]bool), story: Story{
		Key: key, Findings: []Finding{}, Events: []Event{}, Consumers: []string{}, Moments: []Moment{}, Sections: []Facts{},
	}}
	if err := t.gather(ctx, key); err != nil {
		return Story{}, err
	}
	if len(t.story.Events)+len(t.story.Sections)+len(t.lacks)+len(t.audit)+len(t.story.Reservations) == 0 {
		return Story{}, unknownf("ops: nobody knows %s: it is no event id, aggregate id, idempotency key or trace id", text.Quote(key))
	}
	return t.tell(), nil
}

// tracer collects a story.
type tracer struct {
	*searcher

	cfg   Config
	story Story
	seen  map[string]bool     // event ids
	lacks map[string][]string // facts without their event, by check
	audit []AuditRow
	known known
	fills []view.Backfill // backfills that are open
}

func (t *tracer) gather(ctx context.Context, key string) error {
	var err error
	if t.known, err = t.access.readRegistry(ctx); err != nil {
		return err
	}
	if err := t.entry(ctx, key); err != nil {
		return err
	}
	keys := []string{key}
	for _, e := range t.story.Events {
		keys = append(keys, e.AggregateID)
	}
	keys = unique(keys)
	further, err := t.sections(ctx, keys)
	if err != nil {
		return err
	}
	for _, k := range further {
		if err := t.add(ctx, Query{AggregateID: k}); err != nil {
			return err
		}
	}
	if err := t.caused(ctx); err != nil {
		return err
	}
	if t.cfg.Checks != nil && t.mayAskHost(ctx) {
		if err := t.missing(ctx, keys); err != nil {
			return err
		}
	}
	slices.SortFunc(t.story.Events, func(a, b Event) int { return cmp.Compare(a.OutboxID, b.OutboxID) })
	if err := t.completeWith(ctx, t.known, t.story.Events, listText); err != nil {
		return err
	}
	const most = 100
	if t.fills, err = view.OpenBackfills(ctx, t.access.sql, most, requestText); err != nil {
		return fmt.Errorf("ops: read bulk operations: %w", err)
	}
	if err := t.histories(ctx, t.story.Events); err != nil {
		return err
	}
	if err := t.reserved(ctx); err != nil {
		return err
	}
	return t.interventions(ctx, unique(append(keys, further...)))
}

// entry finds the events that the key names, and all events of their entities.
func (t *tracer) entry(ctx context.Context, key string) error {
	queries := []Query{{EventID: key}, {AggregateID: key}, {IdempotencyKey: key}, {TraceID: key}}
	if kind, id, ok := strings.Cut(key, "/"); ok && kind != "" && id != "" {
		queries = append(queries, Query{AggregateType: kind, AggregateID: id})
	}
	for _, q := range queries {
		if err := t.add(ctx, q); err != nil {
			return err
		}
	}
	type entity struct{ kind, id string }
	var entities []entity
	for _, e := range t.story.Events {
		if x := (entity{e.AggregateType, e.AggregateID}); !slices.Contains(entities, x) {
			entities = append(entities, x)
		}
	}
	const most = 20
	for _, x := range entities[:min(len(entities), most)] {
		if err := t.add(ctx, Query{AggregateType: x.kind, AggregateID: x.id}); err != nil {
			return err
		}
	}
	return nil
}

// caused adds what the events of the entity have caused: the others of their traces.
func (t *tracer) caused(ctx context.Context) error {
	const most = 20
	var traces []string
	for _, e := range t.story.Events {
		if e.TraceID != "" {
			traces = append(traces, e.TraceID)
		}
	}
	traces = unique(traces)
	for _, id := range traces[:min(len(traces), most)] {
		if err := t.add(ctx, Query{TraceID: id}); err != nil {
			return err
		}
	}
	return nil
}

// add adds the events that a query selects, as long as there is room.
func (t *tracer) add(ctx context.Context, q Query) error {
	q.Limit = storyEvents
	p, err := t.page(ctx, q)
	if err != nil {
		return err
	}
	for _, e := range p.Rows {
		switch {
		case t.seen[e.EventID]:
		case len(t.story.Events) == storyEvents:
			t.story.Truncated = true
		default:
			t.seen[e.EventID] = true
			t.story.Events = append(t.story.Events, e)
		}
	}
	t.story.Truncated = t.story.Truncated || p.Next != ""
	return nil
}

func (t *tracer) find(f ...Finding) { t.story.Findings = append(t.story.Findings, f...) }

// interventions reads what people and jobs have done to the events and the entities.
func (t *tracer) interventions(ctx context.Context, targets []string) error {
	targets = slices.Clone(targets)
	if CallerOf(ctx).limited() { // other tenants have entities of the same names
		return t.ownInterventions(ctx)
	}
	for _, e := range t.story.Events {
		targets = append(targets, e.EventID, store.AggregateTarget(e.AggregateType, e.AggregateID))
	}
	types, err := t.aggregateTypes(ctx)
	if err != nil {
		return err
	}
	for _, kind := range types {
		targets = append(targets, store.AggregateTarget(kind, t.story.Key))
	}
	const most = 500
	t.audit, err = auditRows(view.AuditOf(ctx, t.access.sql, unique(targets), most, listText))
	return err
}

// ownInterventions reads what people have done to the events.
func (t *tracer) ownInterventions(ctx context.Context) (err error) {
	var targets []string
	for _, e := range t.story.Events {
		targets = append(targets, e.EventID)
	}
	if len(targets) > 0 {
		t.audit, err = auditRows(view.AuditOf(ctx, t.access.sql, targets, storyEvents, listText))
	}
	return err
}

// tell puts what was gathered into its order.
func (t *tracer) tell() Story {
	var names []string
	for _, e := range t.story.Events {
		t.moments(e)
		for _, d := range e.Deliveries {
			names = append(names, d.Consumer)
		}
	}
	slices.Sort(names)
	t.story.Consumers = append([]string{}, slices.Compact(names)...)
	for _, r := range t.story.Reservations {
		t.story.Moments = append(t.story.Moments, reservationMoments(r)...)
	}
	for _, r := range t.audit {
		t.story.Moments = append(t.story.Moments, intervention(r))
	}
	for _, s := range t.story.Sections {
		for _, m := range s.Moments {
			if m.TraceURL == "" {
				m.TraceURL = t.traceURL(m.TraceID)
			}
			t.story.Moments = append(t.story.Moments, m)
		}
	}
	slices.SortStableFunc(t.story.Moments, func(a, b Moment) int { return a.At.Compare(b.At) })
	t.diagnose()
	return t.story
}

// happened makes a moment: says is a format of args, name by name.
func happened(at time.Time, kind, actor, says string, args map[string]string) Moment {
	return Moment{At: at, Kind: kind, Actor: actor, Says: fill(says, args), Args: args}
}

// intervention is the moment at which somebody did something.
func intervention(r AuditRow) Moment {
	args := map[string]string{"actor": r.Actor, "action": r.Action, "details": r.Details, "reason": r.Reason}
	switch {
	case r.Actor == "reaper" && r.Action == "release":
		return happened(r.At, MomentReleased, r.Actor, "the reaper released {details}: {reason}", args)
	case r.Actor == "consistency" && r.Action == "repair":
		return happened(r.At, MomentRepaired, r.Actor, "the consistency check {details} saved an event: {reason}", args)
	}
	says := "{actor}: {action} {details} ({reason})"
	if r.Details == "" {
		says = "{actor}: {action} ({reason})"
	}
	m := happened(r.At, MomentOperator, r.Actor, says, args)
	if !strings.ContainsAny(r.Target, "/ ") {
		m.EventID = r.Target
	}
	return m
}

// moments are what is known of an event and its deliveries.
func (t *tracer) moments(e Event) {
	saved := "{type} saved"
	if e.Source != "" {
		saved += " by {source}"
	}
	t.moment(e, "", e.CreatedAt, MomentSaved, e.Instance, saved, map[string]string{"source": e.Source})
	if e.LockedBy != "" {
		t.moment(e, "", e.UpdatedAt, MomentClaimed, e.LockedBy, "{type} claimed by {instance} until {until}",
			map[string]string{"instance": e.LockedBy, "until": at(e.NextRetryAt)})
	}
	t.moment(e, "", e.SentAt, MomentSent, "", "{type} is delivered to everybody", map[string]string{})
	for _, d := range e.Deliveries {
		isTold := false
		for _, a := range d.History {
			kind := MomentFailed
			if a.Outcome == consumelog.Dead {
				kind, isTold = MomentDead, true
			}
			t.moment(e, d.Consumer, a.At, kind, a.Instance, "{consumer}: attempt {attempt} of {type} failed after {took}: {error}",
				map[string]string{
					"attempt": strconv.Itoa(a.Attempt), "took": a.Duration.Round(time.Millisecond).String(), "error": firstLine(a.Error),
				})
		}
		t.outcome(e, d, isTold)
	}
}

// outcome is the moment at which a delivery came into its state. If its death is told already it is not told again.
func (t *tracer) outcome(e Event, d Delivery, deathIsTold bool) {
	failure := map[string]string{"error": firstLine(d.Error)}
	switch d.Status {
	case consumelog.Success:
		says, args := recorded(d)
		t.moment(e, d.Consumer, d.ConsumedAt, MomentDone, "", "{consumer} has done {type}"+says, args)
	case consumelog.Skipped:
		t.moment(e, d.Consumer, d.UpdatedAt, MomentSkipped, "", "{consumer} skipped {type}: {error}", failure)
	case consumelog.Dead:
		if !deathIsTold {
			t.moment(e, d.Consumer, d.UpdatedAt, MomentDead, "", "{consumer} gave up {type}: {error}", failure)
		}
	case consumelog.Pending:
		t.moment(e, d.Consumer, d.UpdatedAt, MomentWaits, "", "{type} waits for {consumer}", map[string]string{})
	case consumelog.Processing:
		t.moment(e, d.Consumer, d.UpdatedAt, MomentClaimed, d.LockedBy, "{consumer} runs {type} on {instance} until {until}",
			map[string]string{"instance": d.LockedBy, "until": at(d.NextRetryAt)})
	default:
	}
}

// moment adds a moment of an event, and of a delivery of it if there is a consumer. What has no time has not happened.
func (t *tracer) moment(e Event, consumer string, on time.Time, kind, actor, says string, args map[string]string) {
	if on.IsZero() {
		return
	}
	args["type"] = e.EventType
	if consumer != "" {
		args["consumer"] = consumer
	}
	m := happened(on, kind, actor, says, args)
	m.EventID, m.Consumer, m.TraceID, m.TraceURL = e.EventID, consumer, e.TraceID, e.TraceURL
	t.story.Moments = append(t.story.Moments, m)
}

// recorded is what a consumer has written down about its delivery.
func recorded(d Delivery) (says string, args map[string]string) {
	args = make(map[string]string)
	var parts []string
	if d.IdempotencyKey != "" {
		parts, args["key"] = append(parts, "key {key}"), d.IdempotencyKey
	}
	if d.Result != "" {
		parts, args["result"] = append(parts, "result {result}"), text.Clean(d.Result, 200)
	}
	if len(parts) == 0 {
		return "", args
	}
	return " (" + strings.Join(parts, ", ") + ")", args
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	return text.Clean(strings.TrimRight(s, ". "), 300)
}

func clock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

func unique(list []string) []string {
	slices.Sort(list)
	return slices.DeleteFunc(slices.Compact(list), func(s string) bool { return s == "" })
}
