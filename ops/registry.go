package ops

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/store/view"
)

// instancesFor is how long an instance that is gone is still listed.
const instancesFor = 24 * time.Hour

// registration is a consumer that some instance has announced.
type registration struct {
	name                  string // its key
	displayName           string // empty if that is its key
	pausedBy, pauseReason string
	types                 []string
	gone                  []string // those of types that no running release takes
	replayable            bool
	paused                bool
	pausedUntil           time.Time
	registeredAt, seenAt  time.Time
	age                   time.Duration // since it was last announced
}

// known is the registry at a moment.
type known struct {
	at        time.Time
	consumers []registration // replays are not among them
	replays   map[string]registration
	broken    map[string][]string // instances that leave a consumer alone, because what it calls is away
}

func (a *access) registry(ctx context.Context) (known, error) {
	return share(ctx, a, "registry", nil, a.readRegistry)
}

func (a *access) readRegistry(ctx context.Context) (known, error) {
	k := known{replays: make(map[string]registration), broken: make(map[string][]string)}
	byName := make(map[string]*registration)
	var names []string
	left := budget(registryBudget)
	err := view.Consumers(ctx, a.sql, listText, func(c view.Consumer) error {
		k.at = c.At
		if err := left.take(c.Types, c.Type, c.Name, c.PauseReason); err != nil {
			return err
		}
		if byName[c.Name] == nil {
			r := registration{
				name: c.Name, displayName: c.DisplayName, pausedBy: c.PausedBy, pauseReason: c.PauseReason, replayable: c.IsReplayable,
				paused: c.IsPaused, pausedUntil: c.PausedUntil, registeredAt: c.RegisteredAt, seenAt: c.SeenAt, age: c.SeenFor,
			}
			r.types = storedTypes(c.Types)
			byName[c.Name] = &r
			names = append(names, c.Name)
		}
		if reg := byName[c.Name]; c.Type != "" && !slices.Contains(reg.types, c.Type) {
			reg.types = append(reg.types, c.Type)
			if c.TypeSeenFor > view.Announced {
				reg.gone = append(reg.gone, c.Type)
			}
		}
		return nil
	})
	if err != nil {
		return k, fmt.Errorf("ops: read the consumer registry: %w", err)
	}
	for _, name := range names {
		r := *byName[name]
		slices.Sort(r.types)
		if consumelog.IsReplay(name) {
			k.replays[consumelog.ReplayOf(name)] = r
		} else {
			k.consumers = append(k.consumers, r)
		}
	}
	err = view.Circuits(ctx, a.sql, aliveFor, maxNames, func(instance, consumers string) {
		for c := range strings.SplitSeq(consumers, ",") {
			k.broken[c] = append(k.broken[c], instance)
		}
	})
	if err != nil {
		return k, fmt.Errorf("ops: read the instances: %w", err)
	}
	return k, nil
}

// find returns the registration of a key, a name or a replay.
func (k known) find(name string) (registration, bool) {
	name = consumelog.ReplayOf(name)
	for _, r := range k.consumers {
		if r.name == name {
			return r, true
		}
	}
	for _, r := range k.consumers {
		if r.displayName == name {
			return r, true
		}
	}
	return registration{}, false
}

// has reports whether the engine still expects the consumer.
func (k known) has(name string) bool {
	_, ok := k.find(name)
	return ok
}

// expected lists the deliveries of an event that must come and have no row yet.
func (k known) expected(e Event) []Delivery {
	var out []Delivery
	for _, r := range k.consumers {
		if !slices.Contains(r.types, e.EventType) {
			continue
		}
		there := slices.ContainsFunc(e.Deliveries, func(d Delivery) bool { return d.Consumer == r.name })
		if !there {
			out = append(out, Delivery{Consumer: r.name, Registered: true})
		}
	}
	return out
}

// state tells what a consumer does.
func (k known) state(r registration) State {
	switch {
	case r.age > view.Announced:
		return Unregistered
	case r.paused:
		return Paused
	case len(k.broken[r.name]) > 0:
		return CircuitOpen
	}
	return Running
}

// takes reports whether a running release of a consumer takes an event type. Of a row that does not say anything of types nobody knows.
func (r registration) takes(eventType string) bool {
	return len(r.types) == 0 || slices.Contains(r.types, eventType) && !slices.Contains(r.gone, eventType)
}

// forever is the pause that ends only when the consumer is resumed.
func forever(now, until time.Time) bool { return until.Sub(now) > 50*365*24*time.Hour }
