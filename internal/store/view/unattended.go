package view

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"slices"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/store"
)

// Announced is after how long without an announcement nobody runs a consumer, or takes a type: instances announce both every 30 s.
const Announced = 90 * time.Second

const (
	// Front is how many deliveries of a queue are looked at for what nobody works on, and how many backfills.
	Front = 1000
	// Stuck is after how long nobody goes on with a backfill that has not moved, unless it has failed.
	Stuck = 5 * time.Minute
)

// UnattendedKind says what nobody works on.
type UnattendedKind string

// The kinds of work that nobody does although its consumer runs.
const (
	GoneType   UnattendedKind = "type_gone" // deliveries of a type that no running release of their consumer takes
	GoneReplay UnattendedKind = "replay"    // replays of a consumer of which no instance runs replays
	FailedPast UnattendedKind = "failed"    // a backfill has failed, and nobody has resumed or canceled it
	StuckPast  UnattendedKind = "stuck"     // a backfill is to go on, and nobody goes on with it
)

// Unattended is work that waits for a consumer that runs and is not paused, and on which nobody works.
type Unattended struct {
	Kind      UnattendedKind
	Consumer  string // as its deliveries are named: those of replays have a name of their own
	EventType string // of a type that is gone
	Action    string // of a backfill
	Count     int64  // of deliveries, as far as they were looked at
	Since     time.Time
	For       time.Duration // since then
}

// UnattendedQuery says where to look for work that nobody does.
type UnattendedQuery struct {
	Queues  []store.Queue // as [Queues] or [store.Queued] lists them
	Tenants []int64       // whose deliveries are counted; an empty list means all
	Stuck   time.Duration // after which nobody goes on with a backfill that has not moved. Default: [Stuck]
}

// FindUnattended finds what waits although nobody works on it. It looks at the [Front] of each queue, along idx_consumer_due: what is
// not claimed stays there.
func FindUnattended(ctx context.Context, r Reader, q UnattendedQuery) ([]Unattended, error) {
	waiting, err := waitingTypes(ctx, r, q)
	if err != nil {
		return nil, err
	}
	known, err := registered(ctx, r, waiting)
	if err != nil {
		return nil, err
	}
	var found []Unattended
	replays := make(map[string]int) // where they are in found
	for _, w := range waiting {
		c, of := known[store.ReplayOf(w.consumer)], known[w.consumer]
		u := Unattended{Kind: GoneType, Consumer: w.consumer, EventType: w.eventType, Count: w.count, Since: later(w.typeSeen, w.since)}
		if !c.isRunning || c.isPaused || of.isPaused {
			continue
		}
		if store.IsReplay(w.consumer) && !of.isRunning {
			if i, isFound := replays[w.consumer]; isFound {
				found[i].Count += w.count
				continue
			}
			u.Kind, u.EventType, u.Since = GoneReplay, "", later(of.seen, w.since)
			replays[w.consumer] = len(found)
		} else if c.takes(w) {
			continue
		}
		u.For = w.now.Sub(u.Since)
		found = append(found, u)
	}
	past, err := unattendedPast(ctx, r, q)
	return append(found, past...), err
}

// later is the first of two times that is known.
func later(t, otherwise time.Time) time.Time {
	if t.IsZero() {
		return otherwise
	}
	return t
}

// waitingType is what waits in a queue of one event type.
type waitingType struct {
	now                 time.Time
	consumer, eventType string
	count               int64
	since               time.Time // when the first became what it is
	typeSeen            time.Time // when an instance last took the type for the consumer, zero for never
}

// isTaken reports whether an instance takes the type.
func (w waitingType) isTaken() bool { return w.now.Sub(w.typeSeen) <= Announced }

// waitingTypes lists the event types of what waits at the front of the queues, but for those that an instance takes.
func waitingTypes(ctx context.Context, r Reader, q UnattendedQuery) (found []waitingType, err error) {
	owns, owner := "1 = 1", []any(nil)
	if len(q.Tenants) > 0 {
		owned, arg := owned("x", q.Tenants)
		owns, owner = owned, []any{arg}
	}
	d := r.D
	part := "SELECT " + d.Micros(d.Now) + ", ?, g.type, g.n, g.since, " +
		"COALESCE((SELECT " + d.Micros("k.seen_at") + " FROM bc_consumer_type k WHERE k.consumer_name = ? AND k.event_type = g.type), 0) " +
		"FROM (SELECT x.type, COUNT(*) AS n, MIN(x.since) AS since FROM (SELECT " + r.name("event_type") + " AS type, tenant_id, " +
		d.Micros("updated_at") + " AS since FROM " + store.OfQueue(d) + " ORDER BY " + d.MySQLOnly("consumer_name, status, ") +
		"next_retry_at LIMIT ?) x WHERE " + owns + " GROUP BY x.type) g"
	args := func(of store.Queue) []any {
		return append([]any{of.Consumer, store.ReplayOf(of.Consumer), of.Consumer, of.Status, Front}, owner...)
	}
	for query, args := range store.Union(part, store.In(q.Queues, "PENDING", "FAILED"), store.MostParts, args) {
		err := r.Rows(ctx, func(rows *sql.Rows) error {
			var w waitingType
			var now, since, seen int64
			err := rows.Scan(&now, &w.consumer, &w.eventType, &w.count, &since, &seen)
			w.now, w.since, w.typeSeen = Instant(now), Instant(since), Instant(seen)
			if store.IsReplay(w.consumer) || !w.isTaken() {
				found = append(found, w)
			}
			return err
		}, query, args...)
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

// registeredConsumer is what the registry says of a consumer.
type registeredConsumer struct {
	isRunning, isPaused bool
	seen                time.Time
	types               []string // that the instance takes that announced it last
	hasTypes            bool     // it is known which types it takes
}

// takes reports whether a running release takes the type. Of a row that does not say anything of types nobody knows.
func (c registeredConsumer) takes(w waitingType) bool {
	return w.isTaken() || !c.hasTypes || slices.Contains(c.types, w.eventType)
}

// registered reads those of the registry for which something waits.
func registered(ctx context.Context, r Reader, waiting []waitingType) (map[string]registeredConsumer, error) {
	var names []string
	for _, w := range waiting {
		names = append(names, w.consumer, store.ReplayOf(w.consumer))
	}
	slices.Sort(names)
	known := make(map[string]registeredConsumer)
	for page := range slices.Chunk(slices.Compact(names), dialect.MostIDs) {
		err := r.Rows(ctx, func(rows *sql.Rows) error {
			var name, types string
			var c registeredConsumer
			var now, seen int64
			err := rows.Scan(&now, &name, &types, &seen, &c.isPaused, &c.hasTypes)
			c.seen = Instant(seen)
			c.isRunning = Instant(now).Sub(c.seen) <= Announced
			if json.Unmarshal([]byte(types), &c.types) != nil {
				c.types = nil
			}
			c.hasTypes = c.hasTypes || len(c.types) > 0
			known[name] = c
			return err
		}, "SELECT "+r.D.Micros(r.D.Now)+", "+r.name("name")+", CASE WHEN "+r.D.Bytes("event_types")+" <= ? THEN event_types ELSE '' END, "+
			r.D.Micros("seen_at")+", CASE WHEN paused_until > "+r.D.Now+" THEN 1 ELSE 0 END, "+
			"CASE WHEN EXISTS (SELECT 1 FROM bc_consumer_type t WHERE t.consumer_name = c.name) THEN 1 ELSE 0 END "+
			"FROM bc_consumer c WHERE name IN (?)", store.LongestTypes, bun.List(page))
		if err != nil {
			return nil, err
		}
	}
	return known, nil
}

// unattendedPast lists, by idx_state, the open backfills of consumers that run on which nobody works. One that a publisher gives waits
// while something waits for its consumer, and one of an operator while a process works on another operation: one is done at a time.
func unattendedPast(ctx context.Context, r Reader, q UnattendedQuery) (found []Unattended, err error) {
	busy := make(map[string]bool)
	for _, of := range store.In(q.Queues, "PENDING", "FAILED", "PROCESSING") {
		busy[of.Consumer] = true
	}
	err = r.Rows(ctx, func(rows *sql.Rows) error {
		var u Unattended
		var now, since int64
		err := rows.Scan(&now, &u.Kind, &u.Consumer, &u.Action, &since)
		u.Since = Instant(since)
		u.For = Instant(now).Sub(u.Since)
		if u.Kind == FailedPast || u.Action != store.ActionStart || !busy[u.Consumer] {
			found = append(found, u)
		}
		return err
	}, "SELECT "+r.D.Micros(r.D.Now)+", CASE WHEN b.state = 'FAILED' THEN '"+string(FailedPast)+"' ELSE '"+string(StuckPast)+"' END, "+
		r.name("b.consumer_name")+", "+r.name("b.action")+", "+r.D.Micros("b.updated_at")+" FROM bc_bulk_operation b "+
		"JOIN bc_consumer c ON c.name = b.consumer_name WHERE "+store.OpenBackfill+" AND c.seen_at > "+r.D.After+
		" AND (c.paused_until IS NULL OR c.paused_until <= "+r.D.Now+") AND (b.state = 'FAILED' OR b.updated_at < "+r.D.After+
		" AND (b.action = ? OR NOT EXISTS (SELECT 1 FROM bc_bulk_operation o WHERE o.state = 'RUNNING' AND o.locked_until > "+r.D.Now+
		"))) ORDER BY b.id LIMIT ?", -dialect.Micro(Announced), -dialect.Micro(cmp.Or(q.Stuck, Stuck)), store.ActionStart, Front)
	return found, err
}
