package ops

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/bluecone-go/bluecone/consumelog"
)

const (
	// instancesFor is how long an instance that is gone is still listed.
	instancesFor = 24 * time.Hour
	// announcedEvery is after how long without an announcement nobody runs a consumer: instances
	// announce their consumers every 30 s.
	announcedEvery = 90 * time.Second
)

// registration is a consumer that some instance has announced.
type registration struct {
	name                  string // its key
	displayName           string // empty if that is its key
	pausedBy, pauseReason string
	types                 []string
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

func (o *Ops) registry(ctx context.Context) (known, error) {
	return share(ctx, o.access, "registry", nil, o.readRegistry)
}

func (o *Ops) readRegistry(ctx context.Context) (known, error) {
	k := known{replays: make(map[string]registration), broken: make(map[string][]string)}
	byName := make(map[string]*registration)
	var names []string
	var now int64
	left := budget(registryBudget)
	err := o.rows(ctx, func(rows *sql.Rows) error {
		var r registration
		var types, typ string
		var until, registered, seen int64
		if err := rows.Scan(&now, &r.name, &r.displayName, &types, &r.replayable, &r.paused, &until, &r.pausedBy, &r.pauseReason, &registered, &seen, &typ); err != nil {
			return err
		}
		if err := left.take(types, typ, r.name, r.pauseReason); err != nil {
			return err
		}
		if byName[r.name] == nil {
			_ = json.Unmarshal([]byte(types), &r.types)
			r.pausedUntil, r.registeredAt, r.seenAt = instant(until), instant(registered), instant(seen)
			r.age = time.Duration(now-seen) * time.Microsecond
			byName[r.name] = &r
			names = append(names, r.name)
		}
		if reg := byName[r.name]; typ != "" && !slices.Contains(reg.types, typ) {
			reg.types = append(reg.types, typ)
		}
		return nil
	}, "SELECT "+o.d.Micros(o.d.Now)+", "+o.name("c.name")+", CASE WHEN c.display_name = c.name THEN '' ELSE "+o.name("c.display_name")+" END, "+cut("c.event_types", metadataText)+", c.replayable, CASE WHEN c.paused_until > "+o.d.Now+" THEN 1 ELSE 0 END, COALESCE("+o.d.Micros("c.paused_until")+", 0), "+
		"COALESCE("+o.name("c.paused_by")+", ''), COALESCE("+cut("c.pause_reason", listText)+", ''), "+o.d.Micros("c.registered_at")+", "+o.d.Micros("c.seen_at")+", COALESCE("+o.name("t.event_type")+", '') "+
		"FROM bc_consumer c LEFT JOIN bc_consumer_type t ON t.consumer_name = c.name ORDER BY c.name, t.event_type")
	if err != nil {
		return k, fmt.Errorf("ops: read the consumer registry: %w", err)
	}
	k.at = instant(now)
	for _, name := range names {
		r := *byName[name]
		slices.Sort(r.types)
		if consumelog.IsReplay(name) {
			k.replays[consumelog.ReplayOf(name)] = r
		} else {
			k.consumers = append(k.consumers, r)
		}
	}
	err = o.rows(ctx, func(rows *sql.Rows) error {
		var instance, circuits string
		err := rows.Scan(&instance, &circuits)
		for c := range strings.SplitSeq(circuits, ",") {
			k.broken[c] = append(k.broken[c], instance)
		}
		return err
	}, "SELECT "+o.name("name")+", "+cut("circuits", metadataText)+" FROM bc_instance WHERE circuits IS NOT NULL AND seen_at > "+o.d.After+" LIMIT ?", -aliveFor.Microseconds(), maxNames)
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
	case r.age > announcedEvery:
		return Unregistered
	case r.paused:
		return Paused
	case len(k.broken[r.name]) > 0:
		return CircuitOpen
	}
	return Running
}

// forever is the pause that ends only when the consumer is resumed.
func forever(now, until time.Time) bool { return until.Sub(now) > 50*365*24*time.Hour }
