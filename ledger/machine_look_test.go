package ledger_test

import (
	"slices"
	"time"

	"github.com/stretchr/testify/require"
)

// mayBe is what a call whose answer is lost may have done.
type mayBe struct {
	events   []draft                // saved, all or none
	reserved *reservation           // there
	ends     map[*delivery]string   // so
	states   map[string]string      // of reservations, by event
	rows     bool                   // deliveries more
	leases   func(d *delivery) bool // may be leased
}

// look compares the model with the tables, and takes over which of two things a lost call has done.
func (m *machine) look(may mayBe) {
	m.t.Helper()
	m.lookAtEvents(may)
	m.lookAtReservations(may)
	m.lookAtDeliveries(may)
}

func (m *machine) lookAtEvents(may mayBe) {
	m.t.Helper()
	maybe, states := make(map[string]draft), make(map[string]bool)
	for _, d := range may.events {
		maybe[idOf(d)] = d
	}
	for id := range may.states {
		maybe[id] = m.reserved[id].draft
		states[id] = true
	}
	found, fresh := 0, 0
	for id := range maybe {
		if m.events[id] == nil && !states[id] {
			fresh++
		}
	}
	m.each(m.t, "SELECT event_id, id FROM bc_outbox_event ORDER BY id", func(scan func(...any)) {
		var id string
		var place int64
		scan(&id, &place)
		e := m.events[id]
		if e == nil {
			d, ok := maybe[id]
			require.True(m.t, ok, "event %s is there, which nobody has published", id)
			e = m.commit(d, id)
			if !states[id] {
				found++
				e.isPublished = true
			}
		}
		require.True(m.t, e.place == 0 || e.place == place)
		e.place = place
	})
	require.True(m.t, found == 0 || found == fresh, "of %d events of one call %d are there", fresh, found)
	for _, e := range m.events {
		require.NotZero(m.t, e.place, "event %s is lost", e.id)
	}
}

// commit adds an event to the model.
func (m *machine) commit(d draft, id string) *event {
	e := &event{id: id, kind: d.kind, aggregate: d.aggregate, isInHand: true, due: span{0, 0}}
	m.events[id] = e
	return e
}

func (m *machine) lookAtReservations(may mayBe) {
	m.t.Helper()
	seen := 0
	m.each(m.t, "SELECT event_id, token, state FROM bc_reservation", func(scan func(...any)) {
		var id, text, state string
		scan(&id, &text, &state)
		r := m.reserved[id]
		if r == nil {
			require.True(m.t, may.reserved != nil && idOf(may.reserved.draft) == id, "event %s is reserved, which nobody asked for", id)
			r = may.reserved
			r.token = text
			m.reserved[id] = r
		}
		seen++
		require.Equal(m.t, r.token, text)
		if may.states[id] == state {
			r.state = state
		}
		require.Equal(m.t, r.state, state, "the reservation of %s", id)
		if e := m.events[id]; e == nil || !e.isPublished {
			require.Equal(m.t, e != nil, state == "CONFIRMED", "event %s, whose reservation is %s", id, state)
		}
		if s := m.sales[id]; s != nil && state != "PREPARED" {
			require.Equal(m.t, m.sold(m.t)[id], state == "CONFIRMED", "the sale of %s, whose reservation is %s", id, state)
		}
	})
	require.Len(m.t, m.reserved, seen, "a reservation is lost")
}

func (m *machine) lookAtDeliveries(may mayBe) {
	m.t.Helper()
	seen := 0
	m.each(m.t, "SELECT consumer_name, event_id, status, attempts, COALESCE("+m.d.Micros("next_retry_at")+", 0) - "+
		m.d.Micros(m.d.Now)+" FROM bc_event_consume_log", func(scan func(...any)) {
		var consumer, id, status string
		var attempts int
		var left int64 // until the end of the lease
		scan(&consumer, &id, &status, &attempts, &left)
		seen++
		d := m.deliveries[consumer+"/"+id]
		if d == nil {
			require.True(m.t, may.rows && m.events[id] != nil, "a delivery of %s to %s came from nowhere", id, consumer)
			d = m.add(consumer, m.events[id], span{0, m.now().to})
		}
		if outcome := may.ends[d]; outcome != "" && d.isHeld && status != "PROCESSING" {
			for _, t := range m.tokens {
				if t.of == d && t.lease == d.lease {
					t.ended = stateOf(outcome)
				}
			}
			m.end(d, outcome, m.now())
		}
		want := []string{d.state}
		if d.state == opened {
			want = []string{"PENDING", "FAILED", "PROCESSING"}
		}
		require.True(m.t, slices.Contains(want, status), "the delivery of %s to %s is %s, and should be %s", id, consumer, status, want)
		m.lookAtLease(d, may, status == "PROCESSING" && left > 0, time.Duration(left)*time.Microsecond)
		least, most := d.attempts()
		require.True(m.t, least <= attempts && attempts <= most, "the delivery of %s to %s has %d attempts, not %d to %d", id, consumer, attempts,
			least, most)
	})
	require.Len(m.t, m.deliveries, seen, "a delivery is lost")
}

// lookAtLease compares a lease with that of the row.
func (m *machine) lookAtLease(d *delivery, may mayBe, isLeased bool, left time.Duration) {
	m.t.Helper()
	certain, perhaps := d.due.over(m.now())
	if isLeased && (!d.isHeld || perhaps && left > time.Second) && may.leases != nil && may.leases(d) {
		d.lease, d.isHeld = d.lease+1, true // of a caller that does not know it
		d.due = m.now().plus(left)
		return
	}
	if d.isHeld && !perhaps {
		require.True(m.t, isLeased, "the lease of %s is gone", d.of.id)
	}
	require.False(m.t, isLeased && (!d.isHeld || certain) && d.state == opened, "%s is leased by nobody", d.of.id)
}

func stateOf(outcome string) string {
	if outcome == "PERMANENT" {
		return "DEAD"
	}
	return outcome
}
