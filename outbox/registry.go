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
)

// registration is a consumer that some instance of the deployment has registered.
//
// The registry makes rolling deploys safe: an instance that does not know a consumer
// leaves it a PENDING row instead of calling the event delivered to everybody.
type registration struct {
	name    string
	types   []string
	aliases []string
	paused  bool
	live    bool // seen within the grace time
}

// is reports whether the registration is the consumer with these names.
func (r registration) is(names []string) bool {
	for _, n := range append([]string{r.name}, r.aliases...) {
		if slices.Contains(names, n) {
			return true
		}
	}
	return false
}

// registrations reads the registry.
func (o *Outbox) registrations(ctx context.Context, idb bun.IDB) ([]registration, error) {
	rows, err := idb.QueryContext(ctx, "SELECT name, event_types, aliases, CASE WHEN paused_until > "+o.d.Now+" THEN 1 ELSE 0 END, "+
		o.d.Micros(o.d.Now)+" - "+o.d.Micros("seen_at")+" FROM bc_consumer")
	if err != nil {
		return nil, fmt.Errorf("read the consumer registry: %w", err)
	}
	defer rows.Close()
	var out []registration
	for rows.Next() {
		var r registration
		var types, aliases string
		var paused int
		var age int64
		if err := rows.Scan(&r.name, &types, &aliases, &paused, &age); err != nil {
			return nil, fmt.Errorf("read the consumer registry: %w", err)
		}
		r.paused, r.live = paused == 1, time.Duration(age)*time.Microsecond < consumerGrace
		if json.Unmarshal([]byte(types), &r.types) != nil || json.Unmarshal([]byte(aliases), &r.aliases) != nil {
			return nil, fmt.Errorf("the registry row of consumer %s is not valid JSON", r.name)
		}
		out = append(out, r)
	}
	return out, rows.Err()
}

// consumerGrace is how long a consumer that no instance runs any more is still expected back.
const consumerGrace = 24 * time.Hour

// register writes this instance's consumers into the registry, or renews that they are alive.
func (o *Outbox) register(ctx context.Context, consumers []*bus.Consumer) error {
	for _, c := range consumers {
		types, err := json.Marshal(c.EventTypes())
		if err != nil {
			return err
		}
		aliases, err := json.Marshal(append([]string{}, c.Aliases()...))
		if err != nil {
			return err
		}
		query := "INSERT INTO bc_consumer (name, event_types, aliases, registered_at, seen_at) VALUES (?, ?, ?, " + o.d.Now + ", " + o.d.Now + ")" +
			o.d.Upsert("name", "event_types", "aliases", "seen_at")
		if _, err := o.db.ExecContext(ctx, query, c.Name(), string(types), string(aliases)); err != nil {
			return fmt.Errorf("outbox: register consumer %s: %w", c.Name(), err)
		}
	}
	return nil
}

// foreign lists the consumers of the event type that live in other instances only.
func foreign(all []registration, local []*bus.Consumer, eventType string) []string {
	var names []string
	for _, r := range all {
		known := slices.ContainsFunc(local, func(c *bus.Consumer) bool {
			return r.is(append([]string{c.Name()}, c.Aliases()...))
		})
		if !known && r.live && slices.Contains(r.types, eventType) {
			names = append(names, r.name)
		}
	}
	return names
}

// describe names consumers for a log line.
func describe(consumers []*bus.Consumer) string {
	names := make([]string, len(consumers))
	for i, c := range consumers {
		names[i] = c.Name() + "(" + strings.Join(c.EventTypes(), " ") + ")"
	}
	return strings.Join(names, ", ")
}
