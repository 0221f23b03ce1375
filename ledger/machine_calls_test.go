package ledger_test

import (
	"context"
	"slices"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/outbox"
)

// idOf is the id that an event gets.
func idOf(d draft) string {
	if d.id != "" {
		return d.id
	}
	return outbox.EventID(0, d.kind, d.key)
}

// publish publishes events by one call.
func (m *machine) publish(c call, drafts ...draft) {
	var events []any
	for _, d := range drafts {
		events = append(events, d.json())
	}
	s, _ := m.send(c, "shop", "Publish", map[string]any{"events": events})
	var fresh []draft
	for _, d := range drafts {
		if e := m.events[idOf(d)]; e == nil && !slices.ContainsFunc(fresh, func(f draft) bool { return idOf(f) == idOf(d) }) {
			fresh = append(fresh, d)
		}
	}
	if s.isLost {
		m.look(mayBe{events: fresh})
		return
	}
	require.Empty(m.t, s.code)
	for i, d := range drafts {
		require.Equal(m.t, idOf(d), s.body["eventIds"].([]any)[i]) //nolint:forcetypeassert // the answer of the contract
	}
	for _, d := range fresh {
		m.commit(d, idOf(d)).isPublished = true
	}
	m.look(mayBe{})
	for i := 1; i < len(fresh); i++ {
		require.Less(m.t, m.events[idOf(fresh[i-1])].place, m.events[idOf(fresh[i])].place, "events of a call in their order")
	}
}

// publishForbidden sends a good event with one that the caller may not publish: none is there.
func (m *machine) publishForbidden(c call, d draft) {
	s, _ := m.send(c, "shop", "Publish", map[string]any{"events": []any{d.json(), draft{kind: "user.made", aggregate: "a", id: "x"}.json()}})
	require.True(m.t, s.isLost || s.code == "permission_denied", s.code)
	m.look(mayBe{})
}

// begin asks whether a consumer may handle an event.
func (m *machine) begin(c call, consumer, id string) {
	e, d := m.events[id], m.deliveries[consumer+"/"+id]
	s, now := m.send(c, "reader", "BeginConsume", map[string]any{"consumer": consumer, "eventId": id})
	switch {
	case s.isLost:
		m.look(mayBe{rows: d == nil, leases: func(d *delivery) bool { return d.consumer == consumer && d.of == e }})
		return
	case e == nil:
		require.Equal(m.t, "not_found", s.code)
	case d != nil && d.state == "DEAD":
		require.Equal(m.t, "failed_precondition", s.code)
	case d != nil && d.isDone():
		require.Equal(m.t, map[string]any{
			"decision": "ALREADY_DONE", "result": d.result, "consumeToken": "", "leaseUntil": nil, "retryAfter": nil,
		}, s.body)
	default:
		d = m.add(consumer, e, now)
		certain, perhaps := true, true
		if d.isHeld {
			certain, perhaps = d.due.over(now)
		}
		isGo := s.body["decision"] == "GO"
		if !isGo {
			require.Equal(m.t, "IN_PROGRESS", s.body["decision"], s.code)
			require.NotEmpty(m.t, s.body["retryAfter"])
		}
		switch {
		case !perhaps || m.blocked(consumer, e):
			require.False(m.t, isGo, "%s gets %s, which somebody has or which is behind another one", consumer, id)
		case certain && !m.mayBeAlone(d, now):
			require.True(m.t, isGo, "%s does not get %s", consumer, id)
		}
		if isGo {
			m.lend(d, s.body["consumeToken"].(string), now) //nolint:forcetypeassert // the answer of the contract
		}
	}
	m.look(mayBe{})
}

// fetch asks for deliveries to a consumer.
func (m *machine) fetch(c call, consumer string, kinds []string, most int) (got int) {
	s, now := m.send(c, "reader", "Fetch", map[string]any{"consumer": consumer, "eventTypes": kinds, "max": most})
	if s.isLost {
		m.registered(consumer, kinds)
		m.look(mayBe{leases: func(d *delivery) bool { return d.consumer == consumer && slices.Contains(kinds, d.of.kind) }})
		m.looked(consumer, now)
		return 0
	}
	require.Empty(m.t, s.code)
	m.register(consumer, kinds)
	must := m.mustCome(consumer, kinds, now)
	all := s.body["deliveries"].([]any) //nolint:forcetypeassert // the answer of the contract
	for _, one := range all {
		got := one.(map[string]any)                                                       //nolint:forcetypeassert // the answer of the contract
		d := m.deliveries[consumer+"/"+got["event"].(map[string]any)["eventId"].(string)] //nolint:forcetypeassert // likewise
		require.NotNil(m.t, d)
		_, perhaps := d.due.over(now)
		require.True(m.t, perhaps && d.state == opened, "%s is handed out too early, or again", d.of.id)
		require.Nil(m.t, m.before(consumer, d.of), "%s is handed out before an earlier one", d.of.id)
		require.Contains(m.t, kinds, d.of.kind)
		m.lend(d, got["consumeToken"].(string), now) //nolint:forcetypeassert // the answer of the contract
		run := int(got["attempt"].(float64))         //nolint:forcetypeassert // likewise
		require.True(m.t, d.ends+1 <= run && run <= d.lease, "run %d of %s, after %d", run, d.of.id, d.ends)
	}
	require.LessOrEqual(m.t, len(all), most)
	require.True(m.t, len(all) > 0 || !must || most < 50, "nothing is handed out, and something is due")
	m.looked(consumer, now)
	m.look(mayBe{})
	return len(all)
}

// register is what a Fetch says of a consumer.
func (m *machine) register(consumer string, kinds []string) {
	m.takes[consumer] = kinds
	for _, e := range m.events {
		if slices.Contains(kinds, e.kind) {
			e.due.to = 0 // if it is parked
		}
	}
}

// registered finds out whether a lost call has registered its consumer: all of it, or nothing.
func (m *machine) registered(consumer string, kinds []string) {
	var is []string
	m.each(m.t, "SELECT event_type FROM bc_consumer_type WHERE consumer_name = ?", func(scan func(...any)) {
		var kind string
		scan(&kind)
		is = append(is, kind)
	}, consumer)
	slices.Sort(is)
	if slices.Equal(is, kinds) {
		m.register(consumer, kinds)
	} else {
		require.Equal(m.t, m.takes[consumer], is)
	}
}

// mustCome reports whether something is due for a consumer for certain.
func (m *machine) mustCome(consumer string, kinds []string, now span) bool {
	for _, d := range m.delivered(consumer) {
		certain, _ := d.due.over(now)
		if d.state == opened && certain && slices.Contains(kinds, d.of.kind) && !m.blocked(consumer, d.of) && !m.mayBeAlone(d, now) {
			return true
		}
	}
	return false
}

// mayBeAlone reports whether a delivery may have to wait because a program that has died may have started it, and a counted run of
// another one is out.
func (m *machine) mayBeAlone(d *delivery, now span) bool {
	return d.isHeld && slices.ContainsFunc(m.delivered(d.consumer), func(other *delivery) bool {
		certain, _ := other.due.over(now)
		return other != d && other.isHeld && other.lease > 1 && !certain
	})
}

// heartbeat renews a lease.
func (m *machine) heartbeat(c call, t *token) {
	s, now := m.send(c, "reader", "Heartbeat", map[string]any{"consumeToken": t.text})
	d := t.of
	isMine := d.isHeld && d.lease == t.lease
	certain, perhaps := d.due.over(now)
	switch {
	case s.isLost && isMine:
		m.renewed(d, now)
	case s.isLost:
	case !isMine:
		require.Equal(m.t, "aborted", s.code)
	case !perhaps:
		require.Empty(m.t, s.code)
		d.due = now.plus(leased)
	case s.code == "":
		d.due = now.plus(leased)
	default:
		require.Equal(m.t, "aborted", s.code)
		require.True(m.t, certain || perhaps)
	}
	m.look(mayBe{})
}

// renewed finds out when a lease ends after a lost call.
func (m *machine) renewed(d *delivery, now span) {
	m.each(m.t, "SELECT COALESCE("+m.d.Micros("next_retry_at")+", 0) - "+m.d.Micros(m.d.Now)+" FROM bc_event_consume_log "+
		"WHERE consumer_name = ? AND event_id = ?", func(scan func(...any)) {
		var left int64
		scan(&left)
		d.due = span{now.from, m.now().to}.plus(time.Duration(left) * time.Microsecond)
	}, d.consumer, d.of.id)
}

// finish ends a lease.
func (m *machine) finish(c call, t *token, outcome string) {
	s, now := m.send(c, "reader", "FinishConsume", ack(t, outcome))
	if s.isLost {
		m.look(m.mayEnd(map[*token]string{t: outcome}))
		return
	}
	m.finished(t, outcome, s.code, s.body["state"], now)
	m.look(mayBe{})
}

// ack is what a consumer says of a delivery.
func ack(t *token, outcome string) map[string]any {
	out := map[string]any{"consumeToken": t.text, "outcome": outcome}
	if outcome == "FAILED" || outcome == "PERMANENT" {
		out["error"] = "as told"
	}
	if outcome == "SUCCESS" {
		out["result"] = resultOf(t.of)
	}
	return out
}

// mayEnd is what an answer would have said of tokens.
func (m *machine) mayEnd(of map[*token]string) mayBe {
	may := mayBe{ends: make(map[*delivery]string)}
	for t, outcome := range of {
		if t.of.isHeld && t.of.lease == t.lease {
			may.ends[t.of] = outcome
		}
	}
	return may
}

// finished judges the answer to the end of a lease.
func (m *machine) finished(t *token, outcome, code string, state any, now span) {
	m.t.Helper()
	d := t.of
	_, perhaps := d.due.over(now)
	switch {
	case d.isHeld && d.lease == t.lease && (!perhaps || code == ""):
		require.Equal(m.t, stateOf(outcome), state, code)
		t.ended = m.end(d, outcome, now)
		m.wake(d, now)
	case t.ended != "" && d.lease == t.lease && (!t.vague || code == ""):
		require.Equal(m.t, t.ended, state, "a repeated call has the same answer")
	default:
		require.Equal(m.t, "aborted", code, "the token of %s is stale", d.of.id)
	}
}

// ackAll ends leases by one call.
func (m *machine) ackAll(c call, tokens []*token, outcomes []string) {
	var acks []any
	of := make(map[*token]string)
	for i, t := range tokens {
		acks, of[t] = append(acks, ack(t, outcomes[i])), outcomes[i]
	}
	s, now := m.send(c, "reader", "Ack", map[string]any{"acks": acks})
	if s.isLost {
		m.look(m.mayEnd(of))
		return
	}
	require.Empty(m.t, s.code)
	for i, t := range tokens {
		state := s.body["states"].([]any)[i].(map[string]any) //nolint:forcetypeassert // the answer of the contract
		code := ""
		if refused, ok := state["error"].(map[string]any); ok {
			code, _ = refused["code"].(string)
		}
		m.finished(t, outcomes[i], code, state["state"], now)
	}
	m.look(mayBe{})
}

// stranger uses tokens that are not its own, or that nobody has.
func (m *machine) stranger(c call, t *token) {
	for _, method := range []string{"Heartbeat", "FinishConsume"} {
		body := map[string]any{"consumeToken": t.text}
		if method == "FinishConsume" {
			body["outcome"] = "SUCCESS"
		}
		s, _ := m.send(c, "rival", method, body)
		require.True(m.t, s.isLost || s.code == "permission_denied", s.code)
		body["consumeToken"] = "bm90aGluZw"
		s, _ = m.send(c, "reader", method, body)
		require.True(m.t, s.isLost || s.code == "not_found", s.code)
	}
	m.look(mayBe{})
}

// queryConsumption asks what has become of an event.
func (m *machine) queryConsumption(c call, id string) {
	s, _ := m.send(c, "reader", "QueryConsumption", map[string]any{"eventId": id})
	switch {
	case s.isLost:
	case m.events[id] == nil:
		require.Equal(m.t, "not_found", s.code)
	default:
		all := s.body["consumers"].([]any) //nolint:forcetypeassert // the answer of the contract
		for _, one := range all {
			got := one.(map[string]any)                        //nolint:forcetypeassert // likewise
			d := m.deliveries[got["consumer"].(string)+"/"+id] //nolint:forcetypeassert // likewise
			require.NotNil(m.t, d)
			require.Equal(m.t, d.result, got["result"])
			if d.isDone() || d.state == "DEAD" {
				require.Equal(m.t, d.state, got["status"])
			}
		}
		n := 0
		for _, d := range m.deliveries {
			if d.of.id == id {
				n++
			}
		}
		require.Len(m.t, all, n)
	}
	m.look(mayBe{})
}

// queryLag asks what a consumer has before it.
func (m *machine) queryLag(c call, consumer string) {
	s, _ := m.send(c, "reader", "QueryLag", map[string]any{"consumer": consumer})
	if !s.isLost {
		pending, dead := 0.0, 0.0
		for _, d := range m.delivered(consumer) {
			switch d.state {
			case opened:
				pending++
			case "DEAD":
				dead++
			}
		}
		require.Equal(m.t, pending, s.body["pending"])
		require.Equal(m.t, dead, s.body["dead"])
		require.NotEmpty(m.t, s.body["oldestAge"])
	}
	m.look(mayBe{})
}

// dispatch lets a publisher tell consumers of what is in hand. If it dies, another one takes over when its leases end.
func (m *machine) dispatch(c call) {
	m.t.Logf("dispatch, %+v", c)
	p := m.all[c.by]
	if c.dies {
		p.arm(c.after)
	}
	began := m.clock()
	err := p.dispatch()
	if c.dies {
		m.restart(c.by)
		m.exec(m.t, "UPDATE bc_outbox_event SET next_retry_at = "+m.d.After+" WHERE status = 'DISPATCHING'", -time.Second.Microseconds())
		err = m.all[1-c.by].dispatch()
	}
	require.NoError(m.t, err)
	now := m.since(began)
	parked := make(map[string]bool)
	m.each(m.t, "SELECT event_id FROM bc_outbox_event WHERE status IN ('NEW', 'SCHEDULED')", func(scan func(...any)) {
		var id string
		scan(&id)
		parked[id] = true
	})
	for _, e := range m.inOrder() {
		certain, perhaps := e.due.over(now)
		takers := m.takers(e.kind)
		switch {
		case !e.isInHand || !perhaps:
		case len(takers) == 0:
			e.due = span{e.due.from, now.to + 30*time.Second}
		case certain || !parked[e.id]:
			e.isInHand = false
			for _, consumer := range takers {
				m.add(consumer, e, now)
			}
		}
	}
	m.look(mayBe{})
}

// retry lets an operator have a DEAD delivery run again.
func (m *machine) retry(d *delivery) {
	m.t.Logf("retry %s for %s", d.of.id, d.consumer)
	began := m.clock()
	require.NoError(m.t, m.all[0].ob.Retry(context.Background(), outbox.Operation{Actor: "machine", Reason: "to see"}, d.of.id, d.consumer))
	d.state, d.due, d.ends = opened, m.since(began), 0
	for _, t := range m.tokens {
		t.vague = t.vague || t.of == d
	}
	m.look(mayBe{})
}
