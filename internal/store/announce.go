package store

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/uptrace/bun"
)

// Registration is a consumer of the registry.
type Registration struct {
	Key        string
	EventTypes string // the column of bc_consumer, a JSON list unless somebody has written something else
	IsPaused   bool
	Types      []string // those of bc_consumer_type
}

// Read reads the registry, in the order of the consumers' keys, by the primary keys of both tables.
func (r Registry) Read(ctx context.Context, idb bun.IDB) ([]Registration, error) {
	rows, err := r.stmts.On(idb).QueryContext(ctx, "SELECT COALESCE(name, ''), COALESCE(event_types, '[]'), "+
		"CASE WHEN paused_until > "+r.d.Now+" THEN 1 ELSE 0 END, COALESCE(t.event_type, '') "+
		"FROM bc_consumer c LEFT JOIN bc_consumer_type t ON t.consumer_name = c.name ORDER BY c.name")
	if err != nil {
		return nil, fmt.Errorf("read the consumer registry: %w", err)
	}
	defer rows.Close()
	var all []Registration
	for rows.Next() {
		var reg Registration
		var typ string
		if err := rows.Scan(&reg.Key, &reg.EventTypes, &reg.IsPaused, &typ); err != nil {
			return nil, fmt.Errorf("read the consumer registry: %w", err)
		}
		if reg.Key == "" { // it names nobody
			continue
		}
		if last := len(all) - 1; last < 0 || all[last].Key != reg.Key { // otherwise another type of the same one
			all = append(all, reg)
		}
		if of := &all[len(all)-1]; typ != "" {
			of.Types = append(of.Types, typ)
		}
	}
	return all, rows.Err()
}

// Announcement is what an instance says of a consumer.
type Announcement struct {
	Key, Name    string
	Types        []string // of events that the instance delivers to it
	IsReplayable bool
}

// AnnounceConsumers writes consumers, or that they are alive, by their primary key. Give them in one order, so that instances
// that do so at once do not wait for each other in a circle. The column aliases is there for instances of releases before 0007.
func (r Registry) AnnounceConsumers(ctx context.Context, db *bun.DB, consumers []Announcement) error {
	rows := make([]string, 0, len(consumers))
	for _, c := range consumers {
		types, err := json.Marshal(append([]string{}, c.Types...))
		if err != nil {
			return err
		}
		replayable := 0
		if c.IsReplayable {
			replayable = 1
		}
		rows = append(rows, row(db, "?, ?, ?, '[]', ?, "+r.d.Now+", "+r.d.Now, c.Key, c.Name, string(types), replayable))
	}
	return r.upsert(ctx, db, "INSERT INTO bc_consumer (name, display_name, event_types, aliases, replayable, registered_at, seen_at) VALUES ",
		rows, "name", "display_name", "event_types", "replayable", "seen_at")
}

// AnnounceTypes adds the event types that an instance takes to those of other releases, by their primary key.
func (r Registry) AnnounceTypes(ctx context.Context, db *bun.DB, consumers []Announcement) error {
	var rows []string
	for _, c := range consumers {
		for _, t := range c.Types {
			rows = append(rows, row(db, "?, ?, "+r.d.Now, c.Key, t))
		}
	}
	return r.upsert(ctx, db, "INSERT INTO bc_consumer_type (consumer_name, event_type, seen_at) VALUES ", rows, "consumer_name, event_type", "seen_at")
}

// row is the values of a row as text.
func row(db *bun.DB, values string, args ...any) string {
	return "(" + db.QueryGen().FormatQuery(values, args...) + ")"
}

// mostBytes is how long a statement that announces consumers may get: every database takes it, and few deployments need two.
const mostBytes = 600_000

// upsert writes the rows, each one the values between brackets, in as few statements as their length allows.
func (r Registry) upsert(ctx context.Context, db *bun.DB, insert string, rows []string, key string, set ...string) error {
	for len(rows) > 0 {
		n, length := 0, 0
		for n < len(rows) && (n == 0 || length+len(rows[n]) <= mostBytes) {
			length += len(rows[n]) + len(", ")
			n++
		}
		if _, err := db.ExecContext(ctx, insert+strings.Join(rows[:n], ", ")+r.d.Upsert(key, set...)); err != nil {
			return err
		}
		rows = rows[n:]
	}
	return nil
}
