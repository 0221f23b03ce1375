package outbox

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consumelog"
)

// registration is a consumer that some instance of the deployment has registered.
//
// The registry makes rolling deploys safe: an instance that does not know a consumer
// leaves it a PENDING row instead of calling the event delivered to everybody.
type registration struct {
	key    string
	types  []string // what any instance has lately said that it takes
	paused bool
	live   bool // seen within the grace time
}

// registrations reads the registry, and what the time is by the database's clock, in microseconds.
func (o *Outbox) registrations(ctx context.Context, idb bun.IDB) (out []registration, now int64, err error) {
	rows, err := o.stmts.On(idb).QueryContext(ctx, "SELECT "+o.d.Micros(o.d.Now)+", COALESCE(name, ''), COALESCE(event_types, '[]'), "+
		"CASE WHEN paused_until > "+o.d.Now+" THEN 1 ELSE 0 END, COALESCE("+o.d.Micros("c.seen_at")+", 0), COALESCE(t.event_type, ''), COALESCE("+o.d.Micros("t.seen_at")+", 0) "+
		"FROM (SELECT 1 AS one) AS o LEFT JOIN bc_consumer c ON 1 = 1 LEFT JOIN bc_consumer_type t ON t.consumer_name = c.name ORDER BY c.name")
	if err != nil {
		return nil, 0, fmt.Errorf("read the consumer registry: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var r registration
		var types, typ string
		var seen, typeSeen int64
		if err := rows.Scan(&now, &r.key, &types, &r.paused, &seen, &typ, &typeSeen); err != nil {
			return nil, 0, fmt.Errorf("read the consumer registry: %w", err)
		}
		lately := func(at int64) bool { return time.Duration(now-at)*time.Microsecond < consumerGrace }
		if last := len(out) - 1; last >= 0 && out[last].key == r.key { // another type of the same one
			if lately(typeSeen) && !slices.Contains(out[last].types, typ) {
				out[last].types = append(out[last].types, typ)
			}
			continue
		}
		r.live = lately(seen)
		if json.Unmarshal([]byte(types), &r.types) != nil {
			return nil, 0, fmt.Errorf("the registry row of consumer %s is not valid JSON", r.key)
		}
		if typ != "" && lately(typeSeen) && !slices.Contains(r.types, typ) {
			r.types = append(r.types, typ)
		}
		if r.key != "" { // the one row of an empty registry
			out = append(out, r)
		}
	}
	return out, now, rows.Err()
}

// consumerGrace is how long a consumer that no instance runs any more is still expected back.
const consumerGrace = 24 * time.Hour

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

// foreign lists, by their keys, the consumers of the event type that only other instances can call: those that are
// not known here, and those that an older release knows without this type.
func foreign(all []registration, local []*bus.Consumer, eventType string) []string {
	var keys []string
	for _, r := range all {
		called := slices.ContainsFunc(local, func(c *bus.Consumer) bool { return c.Handles(eventType) && r.key == c.Key() })
		if !called && r.live && slices.Contains(r.types, eventType) {
			keys = append(keys, r.key)
		}
	}
	return keys
}

// typesOf lists the event types that any instance takes for the consumer.
func typesOf(all []registration, c *bus.Consumer) []string {
	types := slices.Clone(c.EventTypes())
	for _, r := range all {
		if r.key != c.Key() {
			continue
		}
		for _, t := range r.types {
			if !slices.Contains(types, t) {
				types = append(types, t)
			}
		}
	}
	return types
}

// describe names consumers for a log line.
func describe(consumers []*bus.Consumer) string {
	names := make([]string, len(consumers))
	for i, c := range consumers {
		names[i] = c.Name() + "(" + strings.Join(c.EventTypes(), " ") + ")"
	}
	return strings.Join(names, ", ")
}
