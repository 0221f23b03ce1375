package outbox

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consumelog"
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
	all    []registration
	takers map[string][]string // the keys of those that take an event type
	now    int64               // by the database's clock, in microseconds
}

// readRoster reads the registry. Of a row that is rotten only what bc_consumer_type says is known.
func (o *Outbox) readRoster(ctx context.Context, idb bun.IDB) (roster, error) {
	rows, err := o.stmts.On(idb).QueryContext(ctx, "SELECT "+o.d.Micros(o.d.Now)+", COALESCE(name, ''), COALESCE(event_types, '[]'), "+
		"CASE WHEN paused_until > "+o.d.Now+" THEN 1 ELSE 0 END, COALESCE(t.event_type, '') "+
		"FROM (SELECT 1 AS one) AS o LEFT JOIN bc_consumer c ON 1 = 1 LEFT JOIN bc_consumer_type t ON t.consumer_name = c.name ORDER BY c.name")
	if err != nil {
		return roster{}, fmt.Errorf("read the consumer registry: %w", err)
	}
	defer rows.Close()
	out := roster{takers: make(map[string][]string)}
	for rows.Next() {
		var r registration
		var types, typ string
		if err := rows.Scan(&out.now, &r.key, &types, &r.paused, &typ); err != nil {
			return roster{}, fmt.Errorf("read the consumer registry: %w", err)
		}
		if r.key == "" { // the one row of an empty registry, or one that names nobody
			continue
		}
		if last := len(out.all) - 1; last < 0 || out.all[last].key != r.key { // otherwise another type of the same one
			r.types = o.typesIn(ctx, r.key, types)
			out.all = append(out.all, r)
		}
		if of := &out.all[len(out.all)-1]; typ != "" && !slices.Contains(of.types, typ) {
			of.types = append(of.types, typ)
		}
	}
	for _, r := range out.all {
		for _, t := range r.types {
			out.takers[t] = append(out.takers[t], r.key)
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
	var args []any
	add := func(key, name string, types []string, replayable int) error {
		t, err := json.Marshal(append([]string{}, types...))
		args = append(args, key, name, string(t), replayable)
		return err
	}
	for _, c := range consumers {
		replayable := 0
		if c.Replayable() { // so that its replays can be paused; they are expected of no event
			replayable = 1
			if err := add(consumelog.ReplayName(c.Key()), consumelog.ReplayName(c.Name()), nil, 0); err != nil {
				return err
			}
		}
		if err := add(c.Key(), c.Name(), c.EventTypes(), replayable); err != nil {
			return err
		}
	}
	return o.upsert(ctx, "INSERT INTO bc_consumer (name, display_name, event_types, aliases, replayable, registered_at, seen_at) VALUES ",
		"(?, ?, ?, '[]', ?, "+o.d.Now+", "+o.d.Now+")", len(args)/4, args, "name", "display_name", "event_types", "replayable", "seen_at")
}

// registerTypes adds the event types that this instance takes to those of other releases.
func (o *Outbox) registerTypes(ctx context.Context, consumers []*bus.Consumer) error {
	var args []any
	for _, c := range consumers {
		for _, t := range c.EventTypes() {
			args = append(args, c.Key(), t)
		}
	}
	return o.upsert(ctx, "INSERT INTO bc_consumer_type (consumer_name, event_type, seen_at) VALUES ", "(?, ?, "+o.d.Now+")", len(args)/2, args, "consumer_name, event_type", "seen_at")
}

// upsert writes n rows.
func (o *Outbox) upsert(ctx context.Context, insert, row string, n int, args []any, key string, set ...string) error {
	if n == 0 {
		return nil
	}
	_, err := o.db.ExecContext(ctx, insert+strings.Repeat(", "+row, n)[2:]+o.d.Upsert(key, set...), args...)
	return err
}

// foreign lists, by their keys, the consumers of the event type that only other instances can call: those
// that are not known here, and those that an older release knows without this type.
func (r roster) foreign(local map[string]*bus.Consumer, eventType string) []string {
	var keys []string
	for _, key := range r.takers[eventType] {
		if c := local[key]; c == nil || !c.Handles(eventType) {
			keys = append(keys, key)
		}
	}
	return keys
}

// describe names consumers for a log line.
func describe(consumers []*bus.Consumer) string {
	names := make([]string, len(consumers))
	for i, c := range consumers {
		names[i] = c.Name() + "(" + strings.Join(c.EventTypes(), " ") + ")"
	}
	return strings.Join(names, ", ")
}
