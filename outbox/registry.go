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
	rows, err := o.stmts.On(idb).QueryContext(ctx, "SELECT COALESCE(name, ''), COALESCE(event_types, '[]'), "+
		"CASE WHEN paused_until > "+o.d.Now+" THEN 1 ELSE 0 END, COALESCE(t.event_type, '') "+
		"FROM bc_consumer c LEFT JOIN bc_consumer_type t ON t.consumer_name = c.name ORDER BY c.name")
	if err != nil {
		return nil, fmt.Errorf("read the consumer registry: %w", err)
	}
	defer rows.Close()
	out := &roster{}
	var taken map[string]bool // the types of the last one
	for rows.Next() {
		var r registration
		var types, typ string
		if err := rows.Scan(&r.key, &types, &r.paused, &typ); err != nil {
			return nil, fmt.Errorf("read the consumer registry: %w", err)
		}
		if r.key == "" { // it names nobody
			continue
		}
		if last := len(out.all) - 1; last < 0 || out.all[last].key != r.key { // otherwise another type of the same one
			r.types, taken = o.typesIn(ctx, r.key, types), make(map[string]bool)
			for _, t := range r.types {
				taken[t] = true
			}
			out.all = append(out.all, r)
		}
		if of := &out.all[len(out.all)-1]; typ != "" && !taken[typ] {
			of.types, taken[typ] = append(of.types, typ), true
		}
	}
	return out, rows.Err()
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
	for _, write := range []func(context.Context, []*bus.Consumer) error{o.registerKeys, o.registerTypes} {
		if err := write(ctx, sorted); err != nil {
			return fmt.Errorf("outbox: register consumers %s: %w", describe(sorted), err)
		}
	}
	return nil
}

// registerKeys writes the consumers. The column aliases is there for instances of releases before 0007.
func (o *Outbox) registerKeys(ctx context.Context, consumers []*bus.Consumer) error {
	var rows []string
	add := func(key, name string, types []string, replayable int) error {
		t, err := json.Marshal(append([]string{}, types...))
		rows = append(rows, o.row("?, ?, ?, '[]', ?, "+o.d.Now+", "+o.d.Now, key, name, string(t), replayable))
		return err
	}
	for _, c := range consumers {
		replayable := 0
		if c.Replayable() { // so that its replays can be paused; they are expected of no event
			replayable = 1
			if err := add(store.ReplayName(c.Key()), store.ReplayName(c.Name()), nil, 0); err != nil {
				return err
			}
		}
		if err := add(c.Key(), c.Name(), c.EventTypes(), replayable); err != nil {
			return err
		}
	}
	return o.upsert(ctx, "INSERT INTO bc_consumer (name, display_name, event_types, aliases, replayable, registered_at, seen_at) VALUES ",
		rows, "name", "display_name", "event_types", "replayable", "seen_at")
}

// registerTypes adds the event types that this instance takes to those of other releases.
func (o *Outbox) registerTypes(ctx context.Context, consumers []*bus.Consumer) error {
	var rows []string
	for _, c := range consumers {
		for _, t := range c.EventTypes() {
			rows = append(rows, o.row("?, ?, "+o.d.Now, c.Key(), t))
		}
	}
	return o.upsert(ctx, "INSERT INTO bc_consumer_type (consumer_name, event_type, seen_at) VALUES ", rows, "consumer_name, event_type", "seen_at")
}

// row is the values of a row as text.
func (o *Outbox) row(values string, args ...any) string {
	return "(" + o.db.QueryGen().FormatQuery(values, args...) + ")"
}

// mostBytes is how long a statement that announces consumers may get: every database takes it, and few houses need two.
const mostBytes = 600_000

// upsert writes the rows, each one the values between brackets, in as few statements as their length allows.
func (o *Outbox) upsert(ctx context.Context, insert string, rows []string, key string, set ...string) error {
	for len(rows) > 0 {
		n, length := 0, 0
		for n < len(rows) && (n == 0 || length+len(rows[n]) <= mostBytes) {
			length += len(rows[n]) + len(", ")
			n++
		}
		if _, err := o.db.ExecContext(ctx, insert+strings.Join(rows[:n], ", ")+o.d.Upsert(key, set...)); err != nil {
			return err
		}
		rows = rows[n:]
	}
	return nil
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
