package ledger_test

import (
	"fmt"
	"hash/fnv"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/testdb"
)

// scene is a call in a state in which it has something to do.
type scene struct {
	before func(m *machine)
	call   func(m *machine, c call)
}

// scenes are all methods, and what a publisher, the check-back and a producer do.
func scenes() map[string]scene {
	of := func(n int) func(m *machine) *token {
		return func(m *machine) *token { return m.tokens[n] }
	}
	all := map[string]scene{
		"Publish":              {nothing, func(m *machine, c call) { m.publish(c, paidOf("a", "1"), paidOf("a", "2"), paidOf("b", "3")) }},
		"Publish of a key":     {nothing, func(m *machine, c call) { m.publish(c, draft{kind: "order.paid", aggregate: "a", key: "k"}) }},
		"Reserve":              {nothing, func(m *machine, c call) { m.reserve(c, "shop", paidOf("a", "r"), time.Minute) }},
		"Confirm":              {reserved, func(m *machine, c call) { m.endReservation(c, "shop", "Confirm", "r") }},
		"Cancel":               {reserved, func(m *machine, c call) { m.endReservation(c, "shop", "Cancel", "r") }},
		"QueryReservation":     {reserved, func(m *machine, c call) { m.queryReservation(c, "shop", "r") }},
		"BeginConsume":         {handedOut, func(m *machine, c call) { m.begin(c, "Mail", "1") }},
		"BeginConsume again":   {expired, func(m *machine, c call) { m.begin(c, "Points", "1") }},
		"BeginConsume behind":  {handedOut, func(m *machine, c call) { m.begin(c, "Points", "3") }},
		"Fetch of the next":    {woken, func(m *machine, c call) { m.fetch(c, "Points", kinds, 100) }},
		"Confirm too late":     {canceled, func(m *machine, c call) { m.endReservation(c, "shop", "Confirm", "r") }},
		"the shop is too late": {asked, func(m *machine, c call) { m.sellOnce(c, true) }},
		"check back, nobody":   {unanswered, (*machine).checkBack},
		"Heartbeat":            {handedOut, func(m *machine, c call) { m.heartbeat(c, of(0)(m)) }},
		"Fetch for the first":  {published, func(m *machine, c call) { m.fetch(c, "Points", kinds, 100) }},
		"Fetch":                {dispatched, func(m *machine, c call) { m.fetch(c, "Points", kinds, 100) }},
		"Fetch of suspects":    {expired, func(m *machine, c call) { m.fetch(c, "Points", kinds, 100) }},
		"Fetch of other types": {dispatched, func(m *machine, c call) {
			m.fetch(c, "Points", kinds[1:], 100)
		}},
		"Ack":              {handedOut, func(m *machine, c call) { m.ackAll(c, m.tokens[:2], []string{"SUCCESS", "SUCCESS"}) }},
		"Ack of each kind": {handedOut, func(m *machine, c call) { m.ackAll(c, m.tokens[:2], []string{"FAILED", "SKIPPED"}) }},
		"QueryConsumption": {handedOut, func(m *machine, c call) { m.queryConsumption(c, "1") }},
		"QueryLag":         {handedOut, func(m *machine, c call) { m.queryLag(c, "Points") }},
		"dispatch":         {published, func(m *machine, c call) { m.takes["Points"] = nil; m.dispatch(c) }},
		"the shop reserves": {nothing, func(m *machine, c call) {
			if len(m.sales) == 0 {
				m.shopReserves(c, "s")
			}
		}},
		"the shop sells":       {sold, func(m *machine, c call) { m.sellOnce(c, true) }},
		"the shop changes":     {sold, func(m *machine, c call) { m.sellOnce(c, false) }},
		"check back":           {overdue, (*machine).checkBack},
		"check back, declined": {declined, (*machine).checkBack},
	}
	for _, outcome := range []string{"SUCCESS", "FAILED", "PERMANENT", "SKIPPED"} {
		all["FinishConsume "+outcome] = scene{handedOut, func(m *machine, c call) { m.finish(c, m.tokens[0], outcome) }}
	}
	return all
}

func paidOf(aggregate, id string) draft {
	return draft{kind: "order.paid", aggregate: aggregate, id: id}
}

func nothing(*machine) {}

func reserved(m *machine) { m.reserve(call{}, "shop", paidOf("a", "r"), time.Minute) }

func published(m *machine) { m.publish(call{}, paidOf("a", "1"), paidOf("b", "2"), paidOf("a", "3")) }

func dispatched(m *machine) {
	m.fetch(call{}, "Points", kinds, 100)
	published(m)
	m.dispatch(call{})
}

func handedOut(m *machine) {
	dispatched(m)
	require.Equal(m.t, 2, m.fetch(call{}, "Points", kinds, 100))
}

func expired(m *machine) {
	handedOut(m)
	m.pass(leased + time.Second)
}

func sold(m *machine) { m.shopReserves(call{}, "s") }

func (m *machine) sellOnce(c call, commits bool) {
	for _, s := range m.sales {
		if !s.isOver {
			m.shopSells(c, s, commits, true)
		}
	}
}

// overdue has a sale that was never settled, and one of the till's.
func overdue(m *machine) {
	sold(m)
	for _, s := range m.sales {
		m.shopSells(call{}, s, true, false)
	}
	d := paidOf("a", "t")
	d.checkURL = tillURL
	m.reserve(call{}, "shop", d, time.Second)
	m.tillSays["t"] = "CONFIRMED"
	m.pass(time.Minute)
}

func canceled(m *machine) {
	reserved(m)
	m.endReservation(call{}, "shop", "Cancel", "r")
}

// woken has handed out what was behind a delivery when that ended.
func woken(m *machine) {
	handedOut(m)
	require.Zero(m.t, m.fetch(call{}, "Points", kinds, 100))
	m.finish(call{}, m.tokens[0], "SUCCESS")
	require.Equal(m.t, 1, m.fetch(call{}, "Points", kinds, 100), "the end of what was before it wakes it")
}

// asked has told the ledger that a sale does not commit, which is about to.
func asked(m *machine) {
	sold(m)
	m.pass(time.Minute)
	m.checkBack(call{})
}

func unanswered(m *machine) {
	overdue(m)
	m.tillSays["t"] = ""
}

func declined(m *machine) {
	overdue(m)
	m.tillSays["t"] = "CANCELED"
}

// A call that dies between any two statements has done all that it does, or nothing of it, and whether its caller repeats it or
// gives up, everything comes to its end. On SQLite it dies at every statement, on servers at a sample, and its caller gives up every
// second time; with BLUECONE_TEST_LEDGER=all everywhere, and both.
func TestEveryCallMayDieAtEveryStatement(t *testing.T) {
	t.Parallel()
	isAll := os.Getenv("BLUECONE_TEST_LEDGER") == "all"
	for _, name := range testdb.Dialects() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all, died := deploy(t, name), 0
			for _, title := range titles() {
				sent := dieAt(t, all, title, mostStatements, true)
				for after := range sent {
					for _, repeats := range []bool{true, false} {
						if isAll || (repeats == (after%2 == 0) && (name == "sqlite" && !watched || isSampled(fmt.Sprint(name, title, after)))) {
							dieAt(t, all, title, after, repeats)
							died++
						}
					}
				}
			}
			t.Logf("%d deaths", died)
		})
	}
}

func titles() (all []string) {
	for title := range scenes() {
		all = append(all, title)
	}
	slices.Sort(all)
	return all
}

// dieAt lets a call die after so many statements, or before its answer, and tells how many it has sent.
func dieAt(t *testing.T, all *deployment, title string, after int, repeats bool) (sent int) {
	t.Helper()
	t.Run(fmt.Sprintf("%s after %d, repeats %v", title, after, repeats), func(t *testing.T) {
		m, s := newMachine(t, all), scenes()[title]
		defer m.stop()
		s.before(m)
		s.call(m, call{dies: true, after: after})
		sent = int(all.sent.Load())
		require.Less(t, sent, mostStatements)
		if repeats {
			s.call(m, call{by: 1})
		}
		m.drain()
	})
	return sent
}

const (
	mostStatements = 200 // more than any call sends
	sampleOf       = 12
)

func isSampled(point string) bool {
	h := fnv.New32a()
	_, _ = h.Write([]byte(point)) // never fails
	return h.Sum32()%sampleOf == 0
}
