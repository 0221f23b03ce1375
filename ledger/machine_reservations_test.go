package ledger_test

import (
	"fmt"
	"time"

	"github.com/stretchr/testify/require"
)

// reserve reserves an event for a while.
func (m *machine) reserve(c call, caller string, d draft, ttl time.Duration) {
	r := m.reserved[idOf(d)]
	s, now := m.send(c, caller, "Reserve", map[string]any{"event": d.json(), "ttl": fmt.Sprintf("%ds", int(ttl.Seconds()))})
	fresh := &reservation{draft: d, caller: caller, state: "PREPARED", due: now.plus(ttl)}
	switch {
	case s.isLost:
		m.look(mayBe{reserved: fresh})
		return
	case r != nil && r.caller != caller:
		require.Equal(m.t, "permission_denied", s.code)
	case r != nil:
		require.Equal(m.t, r.token, s.body["reservationToken"], "the same token again")
	default:
		require.Empty(m.t, s.code, s.body)
		require.Equal(m.t, idOf(d), s.body["eventId"])
		fresh.token, _ = s.body["reservationToken"].(string)
		m.reserved[idOf(d)] = fresh
	}
	m.look(mayBe{})
}

// endReservation confirms or cancels a reservation.
func (m *machine) endReservation(c call, caller, method, id string) {
	want := map[string]string{"Confirm": "CONFIRMED", "Cancel": "CANCELED"}[method]
	r := m.reserved[id]
	if r == nil {
		s, _ := m.send(c, caller, method, map[string]any{"reservationToken": "nobody"})
		require.True(m.t, s.isLost || s.code == "not_found", s.code)
		return
	}
	s, _ := m.send(c, caller, method, map[string]any{"reservationToken": r.token})
	switch {
	case s.isLost && r.caller == caller && r.state == "PREPARED":
		m.look(mayBe{states: map[string]string{id: want}})
		return
	case s.isLost:
	case r.caller != caller:
		require.Equal(m.t, "permission_denied", s.code)
	case r.state != want && r.state != "PREPARED":
		require.Equal(m.t, "failed_precondition", s.code)
	default:
		require.Equal(m.t, map[string]any{"state": want}, s.body)
		m.settle(r, want)
	}
	m.look(mayBe{})
}

// settle brings a reservation to its end in the model.
func (m *machine) settle(r *reservation, state string) {
	r.state = state
	if id := idOf(r.draft); state == "CONFIRMED" && m.events[id] == nil {
		m.commit(r.draft, id)
	}
}

// queryReservation asks for a reservation.
func (m *machine) queryReservation(c call, caller, id string) {
	r := m.reserved[id]
	if r == nil {
		r = &reservation{token: "nobody", caller: caller, state: "UNKNOWN"}
	}
	s, _ := m.send(c, caller, "QueryReservation", map[string]any{"reservationToken": r.token})
	switch {
	case s.isLost:
	case r.caller != caller:
		require.Equal(m.t, "permission_denied", s.code)
	default:
		require.Equal(m.t, map[string]any{"state": r.state}, s.body)
	}
	m.look(mayBe{})
}
