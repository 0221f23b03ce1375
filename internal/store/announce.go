package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/schema"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

// Registration is a consumer of the registry.
type Registration struct {
	Key        string
	EventTypes string // the column of bc_consumer, a JSON list unless somebody has written something else
	IsPaused   bool
	IsFilled   bool     // a backfill of it is open
	Types      []string // those of bc_consumer_type
}

// LongestTypes is the longest list of event types, in bytes, that is read of a row of bc_consumer.
const LongestTypes = 64 << 10

// Read reads the registry, in the order of the consumers' keys, by the primary keys of both tables: the lists of event types
// once for each consumer, so that a long one does not come with each of its types. A longer list than LongestTypes is read as
// an empty text, which is no list.
func (r Registry) Read(ctx context.Context, idb bun.IDB) ([]Registration, error) {
	var all []Registration
	at := make(map[string]int)
	err := r.each(ctx, idb, func(rows *sql.Rows) error {
		var reg Registration
		err := rows.Scan(&reg.Key, &reg.EventTypes, &reg.IsPaused)
		if err == nil && reg.Key != "" { // otherwise it names nobody
			at[reg.Key] = len(all)
			all = append(all, reg)
		}
		return err
	}, "SELECT COALESCE(name, ''), "+shortTypes(r.d)+", CASE WHEN paused_until > "+r.d.Now+" THEN 1 ELSE 0 END "+
		"FROM bc_consumer"+r.named("name")+" ORDER BY name")
	if err != nil {
		return nil, err
	}
	filled, err := r.Backfilled(ctx, idb)
	if err != nil {
		return nil, err
	}
	for _, key := range filled {
		if i, ok := at[key]; ok {
			all[i].IsFilled = true
		}
	}
	return all, r.each(ctx, idb, func(rows *sql.Rows) error { // afterwards: an announcement writes the consumer first
		var key, typ string
		err := rows.Scan(&key, &typ)
		if i, ok := at[key]; ok && typ != "" {
			all[i].Types = append(all[i].Types, typ)
		}
		return err
	}, "SELECT consumer_name, event_type FROM bc_consumer_type"+r.named("consumer_name", "event_type")+" ORDER BY consumer_name, event_type")
}

// shortTypes reads a list of event types, unless it is too long.
func shortTypes(d dialect.Dialect) string {
	return fmt.Sprintf("CASE WHEN %s <= %d THEN COALESCE(event_types, '[]') ELSE '' END", d.Bytes("event_types"), LongestTypes)
}

// named leaves out rows with texts that are longer than any name of this library. Only SQLite lets them be.
func (r Registry) named(columns ...string) string {
	if r.d.Name != "sqlite" {
		return ""
	}
	var all []string
	for _, c := range columns {
		all = append(all, "LENGTH("+c+") <= 255")
	}
	return " WHERE " + strings.Join(all, " AND ")
}

// each calls row for every row of a statement on the registry.
func (r Registry) each(ctx context.Context, idb bun.IDB, row func(rows *sql.Rows) error, query string) error {
	rows, err := r.stmts.On(idb).QueryContext(ctx, query)
	if err != nil {
		return fmt.Errorf("read the consumer registry: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		if err := row(rows); err != nil {
			return fmt.Errorf("read the consumer registry: %w", err)
		}
	}
	return rows.Err()
}

// Announcement is what an instance says of a consumer.
type Announcement struct {
	Key, Name    string
	Types        []string // of events that the instance delivers to it
	IsReplayable bool
	StartFrom    time.Time // what it gets of the past when it is new, zero for nothing
}

// AnnounceConsumers writes consumers, or that they are alive, by their primary key. Give them in one order, so that instances
// that do so at once do not wait for each other in a circle. The column aliases is there for instances of releases before 0007.
func (r Registry) AnnounceConsumers(ctx context.Context, idb bun.IDB, consumers []Announcement) error {
	rows := make([]string, 0, len(consumers))
	for _, c := range consumers {
		values, err := r.values(idb, c)
		if err != nil {
			return err
		}
		rows = append(rows, values)
	}
	return r.upsert(ctx, idb, insertConsumers, rows, "name", "display_name", "event_types", "replayable", "seen_at")
}

const insertConsumers = "INSERT INTO bc_consumer (name, display_name, event_types, aliases, replayable, registered_at, seen_at) VALUES "

// values are the row of a consumer.
func (r Registry) values(idb bun.IDB, c Announcement) (string, error) {
	types, err := json.Marshal(append([]string{}, c.Types...))
	if err != nil {
		return "", err
	}
	replayable := 0
	if c.IsReplayable {
		replayable = 1
	}
	return row(idb, "?, ?, ?, '[]', ?, "+r.d.Now+", "+r.d.Now, c.Key, c.Name, string(types), replayable), nil
}

// AnnounceTypes adds the event types that an instance takes to those of other releases, by their primary key.
func (r Registry) AnnounceTypes(ctx context.Context, idb bun.IDB, consumers []Announcement) error {
	var rows []string
	for _, c := range consumers {
		for _, t := range c.Types {
			rows = append(rows, row(idb, "?, ?, "+r.d.Now+", "+r.d.Now, c.Key, t))
		}
	}
	return r.upsert(ctx, idb, "INSERT INTO bc_consumer_type (consumer_name, event_type, seen_at, registered_at) VALUES ", rows,
		"consumer_name, event_type", "seen_at")
}

// row is the values of a row as text.
func row(idb bun.IDB, values string, args ...any) string {
	return "(" + schema.NewQueryGen(idb.Dialect()).FormatQuery(values, args...) + ")"
}

// mostBytes is how long a statement that announces consumers may get: every database takes it, and few deployments need two.
const mostBytes = 600_000

// upsert writes the rows, each one the values between brackets, in as few statements as their length allows.
func (r Registry) upsert(ctx context.Context, idb bun.IDB, insert string, rows []string, key string, set ...string) error {
	for len(rows) > 0 {
		n, length := 0, 0
		for n < len(rows) && (n == 0 || length+len(rows[n]) <= mostBytes) {
			length += len(rows[n]) + len(", ")
			n++
		}
		if _, err := idb.ExecContext(ctx, insert+strings.Join(rows[:n], ", ")+r.d.Upsert(key, set...)); err != nil {
			return err
		}
		rows = rows[n:]
	}
	return nil
}

// IsPaused reports whether an operator has paused a consumer, by the primary key.
func (r Registry) IsPaused(ctx context.Context, idb bun.IDB, consumer string) (bool, error) {
	query := "SELECT name FROM bc_consumer WHERE name = ? AND paused_until > " + r.d.Now
	found, err := readTexts(r.stmts.On(idb).QueryContext(ctx, query, consumer))
	if err != nil {
		return false, fmt.Errorf("ask whether consumer %s is paused: %w", consumer, err)
	}
	return len(found) > 0, nil
}
