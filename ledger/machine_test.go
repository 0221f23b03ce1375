package ledger_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/invariant"
	"github.com/bluecone-go/bluecone/outbox"
)

// machine is a deployment, and what is true of it.
type machine struct {
	*deployment
	model
	t       tester
	all     [2]*process
	nearest int // the instance that the shop calls
	skipped time.Duration
	began   time.Time
	seq     int
	sales   map[string]*sale // by the ids of their events

	mu       sync.Mutex
	tillSays map[string]string // by event, when it is asked
}

// call says which instance answers, and whether it dies before that: after so many statements, or just before the answer.
type call struct {
	by    int
	dies  bool
	after int
}

// Whatever callers, the clock and crashes do, in whatever order: the ledger says what its contract says, nothing is lost, nothing
// happens twice, each aggregate keeps its order, and all comes to its end.
func TestEverySequenceOfCallsKeepsTheContract(t *testing.T) {
	t.Parallel()
	for _, name := range testdb.Dialects() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all := deploy(t, name)
			rapid.Check(t, func(rt *rapid.T) {
				m := newMachine(rt, all)
				defer m.stop()
				rt.Repeat(m.commands(rt))
				m.drain()
			})
		})
	}
}

func newMachine(t tester, all *deployment) *machine {
	all.empty(t)
	m := &machine{
		deployment: all, model: newModel(), t: t, began: time.Now(), sales: make(map[string]*sale), tillSays: make(map[string]string),
	}
	for i := range m.all {
		m.all[i] = all.start(t)
	}
	return m
}

func (m *machine) stop() {
	for _, p := range m.all {
		_ = p.db.Close()
	}
}

// restart starts an instance in place of one that has died.
func (m *machine) restart(i int) {
	m.all[i].isDead.Store(true)
	_ = m.all[i].db.Close()
	m.all[i] = m.start(m.t)
}

// unsure is more than what the clocks of a machine differ in.
const unsure = 100 * time.Millisecond

func (m *machine) clock() time.Duration { return m.skipped + time.Since(m.began) }

func (m *machine) since(began time.Duration) span { return span{began - unsure, m.clock() + unsure} }

func (m *machine) now() span { return m.since(m.clock()) }

// send calls a method.
func (m *machine) send(c call, token, method string, body any) (said, span) {
	if c.dies {
		m.all[c.by].arm(c.after)
	}
	began := m.clock()
	s := m.all[c.by].call(m.t, token, method, body)
	if s.isLost {
		m.restart(c.by)
	}
	m.t.Logf("%s of %s, %+v: %v: %s %v", method, token, c, body, s.code, s.body)
	return s, m.since(began)
}

// pass lets time pass.
func (m *machine) pass(d time.Duration) {
	m.t.Logf("%v pass", d)
	m.skip(m.t, d)
	m.skipped += d
}

var (
	kinds     = []string{"order.paid", "order.refunded"}
	consumers = []string{"Points", "Mail"}
	outcomes  = []string{"SUCCESS", "SUCCESS", "SUCCESS", "FAILED", "PERMANENT", "SKIPPED"}
)

func (m *machine) call(rt *rapid.T) call {
	c := call{by: rapid.IntRange(0, 1).Draw(rt, "instance")}
	if rapid.IntRange(0, 4).Draw(rt, "dies") == 0 {
		c.dies, c.after = true, rapid.IntRange(0, 24).Draw(rt, "after")
	}
	return c
}

// draft is a new event, or one with an id or a key that may have been there before.
func (m *machine) draft(rt *rapid.T) draft {
	m.seq++
	d := draft{
		kind: rapid.SampledFrom(kinds).Draw(rt, "type"), aggregate: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "aggregate"),
		id: fmt.Sprint("e", m.seq),
	}
	switch rapid.IntRange(0, 5).Draw(rt, "identity") {
	case 0:
		d.id, d.key = "", fmt.Sprint("key-", rapid.IntRange(1, 3).Draw(rt, "key"))
	case 1:
		if known := m.ids(); len(known) > 0 {
			d = m.again(rapid.SampledFrom(known).Draw(rt, "known id"), d)
		}
	}
	return d
}

// again is the event with an id once more, or another one if the id is that of a key: those come again by their keys.
func (m *machine) again(id string, other draft) draft {
	e, r := m.events[id], m.reserved[id]
	switch {
	case len(id) == len(outbox.EventID(0, "", "")):
		return other
	case e != nil:
		return draft{kind: e.kind, aggregate: e.aggregate, id: id}
	}
	return draft{kind: r.kind, aggregate: r.aggregate, id: id}
}

// ids are those of all events that anybody has heard of.
func (m *machine) ids() []string {
	all := slices.Concat(slices.Collect(maps.Keys(m.events)), slices.Collect(maps.Keys(m.reserved)))
	slices.Sort(all)
	return slices.Compact(all)
}

func (m *machine) id(rt *rapid.T) string {
	return rapid.SampledFrom(append(m.ids(), "nobody")).Draw(rt, "event")
}

// notSold is an event that is not the shop's, which alone ends what it has reserved.
func (m *machine) notSold(rt *rapid.T) string {
	id := m.id(rt)
	if m.sales[id] != nil {
		return "nobody"
	}
	return id
}

// withToken does something with a token, if there is one: with one of the last most of the time.
func (m *machine) withToken(rt *rapid.T, do func(t *token)) {
	if n := len(m.tokens); n > 0 {
		do(m.tokens[n-1-min(rapid.IntRange(0, 12).Draw(rt, "token"), n-1)])
	}
}

func (m *machine) commands(rt *rapid.T) map[string]func(*rapid.T) {
	consumer := func() string { return rapid.SampledFrom(consumers).Draw(rt, "consumer") }
	caller := func() string { return rapid.SampledFrom([]string{"shop", "shop", "shop", "rival"}).Draw(rt, "caller") }
	outcome := func() string { return rapid.SampledFrom(outcomes).Draw(rt, "outcome") }
	return map[string]func(*rapid.T){
		"publish": func(rt *rapid.T) {
			var all []draft
			for range rapid.IntRange(1, 4).Draw(rt, "events") {
				all = append(all, m.draft(rt))
			}
			m.publish(m.call(rt), all...)
		},
		"publish what is forbidden": func(rt *rapid.T) { m.publishForbidden(m.call(rt), m.draft(rt)) },
		"reserve": func(rt *rapid.T) {
			d := m.draft(rt)
			d.checkURL = rapid.SampledFrom([]string{"", tillURL}).Draw(rt, "checkUrl")
			if r := m.reserved[idOf(d)]; r != nil {
				d.checkURL = r.checkURL
			}
			m.reserve(m.call(rt), caller(), d, time.Duration(rapid.IntRange(1, 60).Draw(rt, "ttl"))*time.Second)
		},
		"confirm":           func(rt *rapid.T) { m.endReservation(m.call(rt), caller(), "Confirm", m.notSold(rt)) },
		"cancel":            func(rt *rapid.T) { m.endReservation(m.call(rt), caller(), "Cancel", m.notSold(rt)) },
		"query reservation": func(rt *rapid.T) { m.queryReservation(m.call(rt), caller(), m.id(rt)) },
		"the till knows": func(rt *rapid.T) {
			m.tillSays[m.id(rt)] = rapid.SampledFrom([]string{"CONFIRMED", "CANCELED", "UNKNOWN", "FINE", ""}).Draw(rt, "state")
		},
		"check back":    func(rt *rapid.T) { m.checkBack(m.call(rt)) },
		"shop reserves": func(rt *rapid.T) { m.seq++; m.shopReserves(m.call(rt), fmt.Sprint("s", m.seq)) },
		"shop sells": func(rt *rapid.T) {
			for _, id := range slices.Sorted(maps.Keys(m.sales)) {
				if s := m.sales[id]; !s.isOver {
					m.shopSells(m.call(rt), s, rapid.IntRange(0, 3).Draw(rt, "commits") > 0, rapid.Bool().Draw(rt, "settles"))
					return
				}
			}
		},
		"dispatch":  func(rt *rapid.T) { m.dispatch(m.call(rt)) },
		"begin":     func(rt *rapid.T) { m.begin(m.call(rt), consumer(), m.id(rt)) },
		"heartbeat": func(rt *rapid.T) { m.withToken(rt, func(t *token) { m.heartbeat(m.call(rt), t) }) },
		"finish":    func(rt *rapid.T) { m.withToken(rt, func(t *token) { m.finish(m.call(rt), t, outcome()) }) },
		"stranger":  func(rt *rapid.T) { m.withToken(rt, func(t *token) { m.stranger(call{}, t) }) },
		"fetch": func(rt *rapid.T) {
			takes := kinds[rapid.IntRange(0, 1).Draw(rt, "first type"):]
			m.fetch(m.call(rt), consumer(), takes, rapid.SampledFrom([]int{100, 100, 1, 2}).Draw(rt, "max"))
		},
		"ack": func(rt *rapid.T) {
			var tokens []*token
			var all []string
			for range rapid.IntRange(1, 3).Draw(rt, "acks") {
				m.withToken(rt, func(t *token) {
					if !slices.Contains(tokens, t) {
						tokens, all = append(tokens, t), append(all, outcome())
					}
				})
			}
			if len(tokens) > 0 {
				m.ackAll(m.call(rt), tokens, all)
			}
		},
		"query consumption": func(rt *rapid.T) { m.queryConsumption(m.call(rt), m.id(rt)) },
		"query lag":         func(rt *rapid.T) { m.queryLag(m.call(rt), consumer()) },
		"time passes": func(rt *rapid.T) {
			m.pass(rapid.SampledFrom([]time.Duration{3 * time.Second, leased + time.Second, 2 * time.Minute}).Draw(rt, "time"))
		},
		"an instance dies": func(rt *rapid.T) { m.restart(rapid.IntRange(0, 1).Draw(rt, "instance")) },
		"an operator retries": func(*rapid.T) {
			for _, key := range slices.Sorted(maps.Keys(m.deliveries)) {
				if d := m.deliveries[key]; d.state == "DEAD" {
					m.retry(d)
					return
				}
			}
		},
	}
}

// drain lets everything come to its end.
func (m *machine) drain() {
	for round := 0; ; round++ {
		require.Less(m.t, round, 200, "not everything comes to its end")
		m.pass(11 * time.Minute)
		open := 0
		for _, id := range slices.Sorted(maps.Keys(m.reserved)) {
			r := m.reserved[id]
			if r.state == "PREPARED" && r.checkURL == "" {
				m.endReservation(call{}, r.caller, "Cancel", id)
			}
			m.tillSays[id] = "CONFIRMED"
		}
		m.checkBack(call{by: round % 2})
		for _, r := range m.reserved {
			if r.state == "PREPARED" {
				open++
			}
		}
		for _, consumer := range consumers {
			m.fetch(call{by: round % 2}, consumer, kinds, 100)
		}
		m.dispatch(call{by: round % 2})
		for _, d := range m.deliveries {
			if d.state == "DEAD" {
				m.retry(d)
			}
			if d.state == opened {
				open++
			}
		}
		for _, t := range m.tokens {
			if t.of.isHeld && t.of.lease == t.lease {
				m.finish(call{by: round % 2}, t, "SUCCESS")
			}
		}
		if open == 0 && m.allDispatched() {
			break
		}
	}
	require.NoError(m.t, m.all[0].ob.Sweep(context.Background()))
	found, err := invariant.Check(context.Background(), m.db, invariant.Config{Quiet: true})
	require.NoError(m.t, err)
	require.Empty(m.t, found)
	m.each(m.t, "SELECT event_id, status FROM bc_outbox_event", func(scan func(...any)) {
		var id, status string
		scan(&id, &status)
		require.Equal(m.t, "SENT", status, id)
	})
}

func (m *machine) allDispatched() bool {
	for _, e := range m.events {
		if e.isInHand {
			return false
		}
	}
	return true
}
