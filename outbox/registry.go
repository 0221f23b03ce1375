package outbox

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/telemetry"
)

// registration is a consumer that some instance of the deployment has registered.
//
// The registry makes rolling deploys safe: an instance that does not know a consumer
// leaves it a PENDING row instead of calling the event delivered to everybody.
type registration struct {
	key    string
	types  []string // what any instance has said that it takes
	paused bool
}

// roster is the registry at a moment. What is in it stays until an operator retires it: neither time nor a
// jump of the database's clock ends the wait for a consumer.
type roster struct {
	state     store.State
	all       []registration
	elsewhere map[string][]string // by event type, the keys of the consumers that only other instances can call for it
}

// registry is the deployment's registry as a session knows it. It is read only when it has changed.
type registry struct {
	ob    *Outbox
	local map[string]*bus.Consumer

	mu   sync.Mutex
	last *roster
}

// read returns the registry as of now, and the time by the database's clock, in microseconds.
func (g *registry) read(ctx context.Context, idb bun.IDB) (all *roster, now int64, err error) {
	state, now, err := g.ob.registry.Look(ctx, idb)
	if err != nil {
		return nil, 0, err
	}
	g.mu.Lock()
	all = g.last
	g.mu.Unlock()
	if all != nil && all.state == state {
		return all, now, nil
	}
	if all, err = g.ob.readRoster(ctx, idb); err != nil { // after the look: it may be newer than the state says, never older
		return nil, 0, err
	}
	all.state = state
	all.elsewhere = all.foreign(g.local)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.last = all
	return all, now, nil
}

// readRoster reads the registry. Of a row that is rotten only what bc_consumer_type says is known.
func (o *Outbox) readRoster(ctx context.Context, idb bun.IDB) (*roster, error) {
	rows, err := o.registry.Read(ctx, idb)
	if err != nil {
		return nil, err
	}
	out := &roster{all: make([]registration, len(rows))}
	for i, row := range rows {
		r := registration{key: row.Key, types: o.typesIn(ctx, row.Key, row.EventTypes), paused: row.IsPaused}
		for _, typ := range row.Types {
			if !slices.Contains(r.types, typ) {
				r.types = append(r.types, typ)
			}
		}
		out.all[i] = r
	}
	return out, nil
}

// typesIn are the event types of a registry row. One that is not JSON is reported once.
func (o *Outbox) typesIn(ctx context.Context, key, column string) []string {
	var types []string
	if err := json.Unmarshal([]byte(column), &types); err != nil {
		if _, said := o.saidRotten.LoadOrStore(key, true); !said {
			o.logger.WarnContext(ctx, "bc_consumer.event_types of a consumer is not a JSON list of texts; the consumer is known by bc_consumer_type only, nobody else is affected: "+
				"write '[]' there, or retire the consumer", telemetry.Consumer, key, telemetry.Err, err)
		}
		return nil
	}
	return slices.Compact(slices.Sorted(slices.Values(types)))
}

// register writes this instance's consumers into the registry, or renews that they are alive. Instances
// that do so at once go through the rows in one order.
func (o *Outbox) register(ctx context.Context, consumers []*bus.Consumer) error {
	sorted := slices.SortedFunc(slices.Values(consumers), func(a, b *bus.Consumer) int { return strings.Compare(a.Key(), b.Key()) })
	all := announcements(sorted)
	err := o.registry.AnnounceConsumers(ctx, o.db, all)
	if err == nil {
		err = o.registry.AnnounceTypes(ctx, o.db, all)
	}
	if err != nil {
		return fmt.Errorf("outbox: register consumers %s: %w", describe(sorted), err)
	}
	return nil
}

// announcements are what this instance says of its consumers.
func announcements(consumers []*bus.Consumer) (all []store.Announcement) {
	for _, c := range consumers {
		if c.Replayable() { // so that its replays can be paused; they are expected of no event
			all = append(all, store.Announcement{Key: store.ReplayName(c.Key()), Name: store.ReplayName(c.Name())})
		}
		all = append(all, store.Announcement{Key: c.Key(), Name: c.Name(), Types: c.EventTypes(), IsReplayable: c.Replayable()})
	}
	return all
}

// foreign lists, by event type, the keys of the consumers that only other instances can call: those
// that are not known here, and those that an older release knows without this type.
func (r *roster) foreign(local map[string]*bus.Consumer) map[string][]string {
	keys := make(map[string][]string)
	for _, reg := range r.all {
		for _, t := range reg.types {
			if c := local[reg.key]; c == nil || !c.Handles(t) {
				keys[t] = append(keys[t], reg.key)
			}
		}
	}
	return keys
}

// mostNamed is how many consumers a log line names.
const mostNamed = 20

// describe names consumers for a log line.
func describe(consumers []*bus.Consumer) string {
	var names []string
	for _, c := range consumers[:min(len(consumers), mostNamed)] {
		names = append(names, c.Name()+"("+strings.Join(c.EventTypes(), " ")+")")
	}
	if more := len(consumers) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}
