package ledger_test

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// span is when something happens, by the machine's clock: not earlier and not later. A machine that stands still for seconds
// makes it long, and the model unsure, but never wrong.
type span struct{ from, to time.Duration }

func (s span) plus(d time.Duration) span { return span{s.from + d, s.to + d} }

// over reports whether a moment has come: for certain, or perhaps.
func (s span) over(now span) (certain, perhaps bool) { return s.to < now.from, s.from <= now.to }

// draft is an event as its producer sends it.
type draft struct{ kind, aggregate, id, key, checkURL string }

func (d draft) json() map[string]any {
	out := map[string]any{
		"eventType": d.kind, "aggregateType": "ORDER", "aggregateId": d.aggregate, "payload": map[string]any{"by": d.id + d.key},
	}
	for name, v := range map[string]string{"eventId": d.id, "idempotencyKey": d.key, "checkUrl": d.checkURL} {
		if v != "" {
			out[name] = v
		}
	}
	return out
}

// event is one that is committed.
type event struct {
	id, kind, aggregate string
	place               int64 // in the order
	isPublished         bool  // by a call of its own
	isInHand            bool  // no publisher has told its consumers of it yet
	due                 span  // while it is in hand: it may be parked
}

// delivery is what a consumer has of an event.
type delivery struct {
	consumer string
	of       *event
	state    string // open, SUCCESS, SKIPPED or DEAD
	isHeld   bool   // by the lease with the last number
	lease    int
	due      span // while it is open: when the lease ends, or it may be handed out
	ends     int  // runs with an outcome
	result   any
}

const opened = "open"

func (d *delivery) isDone() bool { return d.state == "SUCCESS" || d.state == "SKIPPED" }

// token is a lease as its consumer knows it.
type token struct {
	text  string
	of    *delivery
	lease int
	ended string // what the end of it was answered with
	vague bool   // somebody may have looked at the delivery since it ended
}

// reservation is a reserved event.
type reservation struct {
	draft
	caller, token, state string
	due                  span // when its producer is asked
}

// model is what is true of the ledger.
type model struct {
	events     map[string]*event
	reserved   map[string]*reservation // by the ids of their events
	takes      map[string][]string     // event types by consumer
	deliveries map[string]*delivery    // by consumer/event
	tokens     []*token
}

func newModel() model {
	return model{
		events: make(map[string]*event), reserved: make(map[string]*reservation), takes: make(map[string][]string),
		deliveries: make(map[string]*delivery),
	}
}

func (m *model) inOrder() []*event {
	return slices.SortedFunc(maps.Values(m.events), func(a, b *event) int { return cmp.Compare(a.place, b.place) })
}

// delivered are the deliveries to a consumer, in the order of their events.
func (m *model) delivered(consumer string) (all []*delivery) {
	for _, e := range m.inOrder() {
		if d := m.deliveries[consumer+"/"+e.id]; d != nil {
			all = append(all, d)
		}
	}
	return all
}

// blocked reports whether an earlier event of the aggregate is unfinished for a consumer.
func (m *model) blocked(consumer string, e *event) bool { return m.before(consumer, e) != nil }

// before is the first such event.
func (m *model) before(consumer string, e *event) *event {
	for _, before := range m.inOrder() {
		if before.place >= e.place || before.aggregate != e.aggregate {
			continue
		}
		if d := m.deliveries[consumer+"/"+before.id]; d != nil {
			if !d.isDone() {
				return before
			}
			continue
		}
		if before.isInHand && (before.kind == e.kind || slices.Contains(m.takes[consumer], before.kind)) {
			return before
		}
	}
	return nil
}

// takers are the consumers that take an event type.
func (m *model) takers(kind string) (all []string) {
	for consumer, kinds := range m.takes {
		if slices.Contains(kinds, kind) {
			all = append(all, consumer)
		}
	}
	return all
}

// add gives a consumer an event that it has not had.
func (m *model) add(consumer string, e *event, now span) *delivery {
	d := m.deliveries[consumer+"/"+e.id]
	if d == nil {
		d = &delivery{consumer: consumer, of: e, state: opened, due: now}
		m.deliveries[consumer+"/"+e.id] = d
	}
	return d
}

// lend hands a delivery out.
func (m *model) lend(d *delivery, text string, now span) {
	d.lease++
	d.isHeld, d.due = true, now.plus(leased)
	m.tokens = append(m.tokens, &token{text: text, of: d, lease: d.lease})
}

// end ends a lease.
func (m *model) end(d *delivery, outcome string, now span) string {
	d.isHeld, d.ends, d.due = false, d.ends+1, now
	switch outcome {
	case "FAILED":
		most := min(time.Second<<min(d.ends, 20), 10*time.Minute)
		d.due = span{now.from + most/2, now.to + most}
		return "FAILED"
	case "PERMANENT":
		d.state = "DEAD"
	default:
		d.state = outcome
	}
	if outcome == "SUCCESS" {
		d.result = resultOf(d)
	}
	return d.state
}

// resultOf is the result that a consumer stores: of every second event one.
func resultOf(d *delivery) any {
	if d.of.place%2 == 0 {
		return nil
	}
	return map[string]any{"of": d.of.id}
}

const (
	shortRest = time.Second      // of a delivery that a look has leased and put back
	longRest  = 64 * time.Second // of one that an earlier event holds up
)

// looked notes that somebody has looked for deliveries to a consumer: what was due may rest now.
func (m *model) looked(consumer string, now span) {
	for _, d := range m.delivered(consumer) {
		if _, perhaps := d.due.over(now); d.state != opened || !perhaps {
			continue
		}
		rest := shortRest
		if m.blocked(consumer, d.of) {
			rest = longRest
		}
		d.due.to = max(d.due.to, now.to+rest)
		for _, t := range m.tokens {
			t.vague = t.vague || t.of == d
		}
	}
}

// wake notes that the end of a delivery has made the next one of its aggregate due.
func (m *model) wake(ended *delivery, now span) {
	for _, d := range m.delivered(ended.consumer) {
		if d.of.place > ended.of.place && d.of.aggregate == ended.of.aggregate && d.state == opened {
			if d.lease == 0 {
				d.due.to = min(d.due.to, now.to)
			}
			return
		}
	}
}

// attempts are the fewest and the most that a row may have counted.
func (d *delivery) attempts() (least, most int) { return d.ends, max(d.lease, d.ends) }
