package model

import "fmt"

// Violation is a broken promise, and the shortest way to it.
type Violation struct {
	Promise string
	Steps   []string
}

// Explored tells how much was looked at.
type Explored struct {
	States    int
	Violation *Violation // nil if every promise holds
}

// Explore visits all states that can be reached, breadth first, until one breaks a promise. It
// fails if there are more than most of them.
func Explore(rules Rules, bounds Bounds, most int) (Explored, error) {
	w := &world{rules: rules, bounds: bounds}
	var start state
	type arrival struct {
		from int32
		name string
	}
	states, came := []state{start}, []arrival{{from: -1}}
	seen := map[state]struct{}{start: {}}
	way := func(at int, last ...string) []string {
		var names []string
		for ; came[at].from >= 0; at = int(came[at].from) {
			names = append([]string{came[at].name}, names...)
		}
		return append(names, last...)
	}
	for at := 0; at < len(states); at++ {
		progress := false
		for _, n := range w.steps(states[at]) {
			progress = progress || !n.fault
			if promise := n.to.broken(); promise != "" {
				return Explored{len(states), &Violation{promise, way(at, n.name)}}, nil
			}
			if _, ok := seen[n.to]; ok {
				continue
			}
			if len(states) == most {
				return Explored{States: most}, fmt.Errorf("model: more than %d states: lower the bounds", most)
			}
			seen[n.to] = struct{}{}
			states, came = append(states, n.to), append(came, arrival{int32(at), n.name})
		}
		if promise := states[at].stuck(); !progress && promise != "" {
			return Explored{len(states), &Violation{promise, way(at)}}, nil
		}
	}
	return Explored{States: len(states)}, nil
}

// broken names the promise that a state breaks.
func (s *state) broken() string {
	if s.disorder {
		return "an effect came before that of an earlier event"
	}
	for e := range events {
		for c := range consumers {
			if s.effects[c][e] > 1 {
				return fmt.Sprintf("event %d had its effect on consumer %d twice", e, c)
			}
			if st := s.log[c][e].status; s.events[e].status == evSent && st != success && st != skipped {
				return fmt.Sprintf("event %d is SENT, but consumer %d has not got it", e, c)
			}
		}
	}
	return ""
}

// stuck names what will never be finished in a state in which nothing more happens by itself.
func (s *state) stuck() string {
	for e := range events {
		switch s.events[e].status {
		case evSent, evGone, evDead:
			continue
		case evFailed:
			if s.waitsForOperator(e) {
				continue
			}
		}
		return fmt.Sprintf("nobody will ever finish event %d", e)
	}
	return ""
}

// waitsForOperator tells whether what waits of the event waits behind a DEAD delivery.
func (s *state) waitsForOperator(e int) bool {
	waits := false
	for c := range consumers {
		if st := s.log[c][e].status; st != pending && st != failed {
			continue
		}
		behind := false
		for p := range e {
			behind = behind || s.log[c][p].status == dead
		}
		if !behind {
			return false
		}
		waits = true
	}
	return waits
}
