package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/google/uuid"
)

// tables are those that something written by hand works on, and how it speaks to them.
type tables struct {
	prepare func(ctx context.Context, n int) error // makes them, with n events
	save    func(ctx context.Context, tx txn, p paid) error
	events  string
	due     string // the columns of the events to be claimed, in order
	columns func(*claimed) []any
	leased  string                                    // what a claim sets
	sent    string                                    // what the end sets
	done    func(consumer int, rows []claimed) string // notes deliveries
}

// slim tables have no column and no index too many.
func slim(db *database) tables {
	now := db.pick("UTC_TIMESTAMP(3)", "now()", "strftime('%Y-%m-%d %H:%M:%f','now')")
	t := tables{
		events: "lim_event", leased: "status = 1", sent: "status = 2",
		columns: func(r *claimed) []any { return []any{&r.id, &r.payload} },
	}
	// SQLite uses its index only if it is told that these are not SENT.
	t.due = "SELECT id, payload FROM lim_event WHERE status = 0 AND next_retry_at <= " + now + " ORDER BY next_retry_at, id"
	t.prepare = func(ctx context.Context, n int) error { return prepareSlim(ctx, db, now, n) }
	t.save = func(ctx context.Context, tx txn, p paid) error {
		payload, err := json.Marshal(p)
		if err != nil {
			return err
		}
		return tx.exec(ctx, "INSERT INTO lim_event (status, next_retry_at, payload) VALUES (0, "+now+", "+db.mark(1)+")", string(payload))
	}
	t.done = func(consumer int, rows []claimed) string {
		if db.dialect == "postgres" {
			return "INSERT INTO lim_done (consumer, event_id) SELECT " + strconv.Itoa(consumer) + ", unnest(" + array(idsOf(rows), "bigint") + ")"
		}
		values := make([]string, len(rows))
		for i, r := range rows {
			values[i] = "(" + strconv.Itoa(consumer) + "," + strconv.FormatInt(r.id, 10) + ")"
		}
		return "INSERT INTO lim_done (consumer, event_id) VALUES " + strings.Join(values, ",")
	}
	return t
}

// prepareSlim makes slim tables with n events.
func prepareSlim(ctx context.Context, db *database, now string, n int) error {
	err := db.exec(ctx,
		db.pick(
			"CREATE TABLE lim_event (id BIGINT AUTO_INCREMENT PRIMARY KEY, status TINYINT NOT NULL, next_retry_at DATETIME(3) NOT NULL, "+
				"payload VARCHAR(600) NOT NULL, KEY k (status, next_retry_at))",
			"CREATE TABLE lim_event (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, status SMALLINT NOT NULL, "+
				"next_retry_at timestamptz NOT NULL, payload TEXT NOT NULL)",
			"CREATE TABLE lim_event (id INTEGER PRIMARY KEY, status INTEGER NOT NULL, next_retry_at TEXT NOT NULL, payload TEXT NOT NULL)"),
		"CREATE TABLE lim_done (consumer SMALLINT NOT NULL, event_id BIGINT NOT NULL, PRIMARY KEY (consumer, event_id))"+
			db.pick("", "", " WITHOUT ROWID"),
	)
	if err == nil && db.dialect != "mysql" {
		err = db.exec(ctx, "CREATE INDEX lim_k ON lim_event (next_retry_at, id) WHERE status = 0")
	}
	for i := 0; i < n && err == nil; i += 1000 {
		rows := make([]string, 0, 1000)
		for j := i; j < min(i+1000, n) && err == nil; j++ {
			var payload []byte
			payload, err = json.Marshal(event(j, n))
			rows = append(rows, "(0,"+now+",'"+string(payload)+"')")
		}
		if err == nil {
			err = db.exec(ctx, "INSERT INTO lim_event (status, next_retry_at, payload) VALUES "+strings.Join(rows, ","))
		}
	}
	return err
}

// full tables are bluecone's own, with all columns and indexes that its promises, its console and
// the design need: what they cost by hand is no cost of the library's code.
func full(db *database) tables {
	now := db.pick("UTC_TIMESTAMP(6)", "statement_timestamp()", "(strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')")
	later := db.pick("UTC_TIMESTAMP(6) + INTERVAL 30 SECOND", "statement_timestamp() + INTERVAL '30 s'",
		"(strftime('%Y-%m-%d %H:%M:%f', 'now', '30 seconds') || '000')")
	t := tables{
		events: "bc_outbox_event",
		leased: "status = 'DISPATCHING', locked_by = 'hand', lock_version = lock_version + 1, next_retry_at = " + later + ", updated_at = " + now,
		sent: "status = 'SENT', locked_by = NULL, lock_version = lock_version + 1, next_retry_at = NULL, sent_at = " + now +
			", updated_at = " + now,
		columns: func(r *claimed) []any {
			return []any{&r.id, &r.payload, &r.eventID, &r.aggregate}
		},
	}
	t.due = "SELECT id, event_payload, event_id, aggregate_id FROM bc_outbox_event" + db.pick(" FORCE INDEX (idx_status_next_retry)", "", "") +
		" WHERE status = 'NEW' AND status <> 'SENT' ORDER BY next_retry_at, id"
	t.prepare = func(ctx context.Context, n int) error {
		e, err := newEngine(ctx, db)
		if err != nil || n == 0 {
			return err
		}
		return e.fill(ctx, n)
	}
	t.save = func(ctx context.Context, tx txn, p paid) error {
		payload, err := json.Marshal(p)
		if err != nil {
			return err
		}
		id, err := uuid.NewV7()
		if err != nil {
			return err
		}
		return tx.exec(ctx, "INSERT INTO bc_outbox_event (aggregate_type, aggregate_id, event_type, event_id, event_payload, next_retry_at) "+
			"VALUES ('ORDER', "+db.mark(1)+", 'order.paid', "+db.mark(2)+", "+db.mark(3)+", "+now+")", p.OrderID, id.String(), string(payload))
	}
	t.done = func(consumer int, rows []claimed) string {
		into := "INSERT INTO bc_event_consume_log (consumer_name, event_id, event_type, outbox_id, aggregate_type, aggregate_id, attempts) "
		if db.dialect == "postgres" {
			events, aggregates := make([]string, len(rows)), make([]string, len(rows))
			for i, r := range rows {
				events[i], aggregates[i] = r.eventID, r.aggregate
			}
			return into + fmt.Sprintf("SELECT 'Consumer%d', e, 'order.paid', i, 'ORDER', a, 1 FROM unnest(%s, %s, %s) AS u (e, i, a)", consumer,
				array(strings.Join(events, ","), "text"), array(idsOf(rows), "bigint"), array(strings.Join(aggregates, ","), "text"))
		}
		values := make([]string, len(rows))
		for i, r := range rows {
			values[i] = fmt.Sprintf("('Consumer%d','%s','order.paid',%d,'ORDER','%s',1)", consumer, r.eventID, r.id, r.aggregate)
		}
		return into + "VALUES " + strings.Join(values, ",")
	}
	return t
}
