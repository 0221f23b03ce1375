package consumelog

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/text"
)

// Existing tells which of the events already have a row for the consumer, and in which state.
func (l *Log) Existing(ctx context.Context, idb bun.IDB, consumer string, eventIDs []string) (map[string]Status, error) {
	rows, err := idb.QueryContext(ctx, "SELECT event_id, status FROM "+table+" WHERE consumer_name = ? AND event_id IN (?)",
		consumer, bun.List(eventIDs))
	if err != nil {
		return nil, fmt.Errorf("consume log: look up deliveries: %w", err)
	}
	defer rows.Close()
	found := make(map[string]Status)
	for rows.Next() {
		var id, status string
		if err := rows.Scan(&id, &status); err != nil {
			return nil, fmt.Errorf("consume log: look up deliveries: %w", err)
		}
		found[id] = Status(status)
	}
	return found, rows.Err()
}

// MarkSuccess inserts, in order, the SUCCESS rows of a consumer's deliveries that were never tried
// before, all at the same attempt, whose events are leased. It must run before their handlers, in the
// same transaction. [ErrLeaseLost] means that the transaction must be rolled back, because some are not
// leased any more.
func (l *Log) MarkSuccess(ctx context.Context, tx bun.Tx, ds []Delivery, leases []dialect.Pair) error {
	if !l.d.SelectsFreely {
		return l.markByValue(ctx, tx, ds)
	}
	// Several versions are a different text each time, which is not worth preparing.
	exec, where, args := tx.ExecContext, dialect.IDs(leases), []any{ds[0].Consumer, ds[0].Attempts}
	if ids, version := sameVersion(leases); ids != nil {
		exec, where, args = l.stmts.On(tx).ExecContext, dialect.Under, append(args, ids, version)
	}
	res, err := exec(ctx, insertInto+") "+fromEvents+" FROM "+eventTable+" AS e WHERE "+where+inOrder, args...)
	if err != nil {
		return fmt.Errorf("consume log: mark deliveries: %w", err)
	}
	return heldAll(res, len(leases))
}

// sameVersion returns the ids of leases that all have one version, or else nil.
func sameVersion(leases []dialect.Pair) (ids []int64, version int64) {
	for _, p := range leases {
		if p.Version != leases[0].Version {
			return nil, 0
		}
		ids = append(ids, p.ID)
	}
	return ids, leases[0].Version
}

// A row by values, or by what stands in its event: a list of ids is less to parse. The defaults of the
// other columns say SUCCESS and now.
const (
	insertInto = "INSERT INTO " + table + " (tenant_id, consumer_name, event_id, event_type, outbox_id, aggregate_type, aggregate_id, attempts"
	fromEvents = "SELECT e.tenant_id, ?, e.event_id, e.event_type, e.id, e.aggregate_type, e.aggregate_id, ?"
	byValue    = "(?,?,?,?,?,?,?,?"
	inOrder    = " ORDER BY e.id" // the log keeps the order of an aggregate
)

// markByValue does not look at the events: what a database need not read it need not lock.
func (l *Log) markByValue(ctx context.Context, tx bun.Tx, ds []Delivery) error {
	if _, err := tx.ExecContext(ctx, insertInto+") "+l.valuesOf(ds, "")); err != nil {
		return fmt.Errorf("consume log: mark deliveries: %w", err)
	}
	return nil
}

// valuesOf is a VALUES of rows, each with more at its end. It is text without arguments, which would be
// eight allocations for each row.
func (l *Log) valuesOf(ds []Delivery, more string) string {
	quote := l.db.Dialect().AppendString
	b := append(make([]byte, 0, 160*len(ds)), "VALUES "...)
	for i, d := range ds {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendID(append(b, '('), d.TenantID)
		for _, s := range []string{d.Consumer, d.EventID, d.EventType} {
			b = quote(append(b, ','), s)
		}
		b = appendID(append(b, ','), d.OutboxID)
		b = quote(append(b, ','), d.AggregateType)
		b = quote(append(b, ','), d.AggregateID)
		b = strconv.AppendInt(append(b, ','), int64(d.Attempts), 10)
		b = append(append(b, more...), ')')
	}
	return string(b)
}

// appendID writes an id, or NULL for none.
func appendID(b []byte, id int64) []byte {
	if id == 0 {
		return append(b, "NULL"...)
	}
	return strconv.AppendInt(b, id, 10)
}

// values are those of byValue.
func (d Delivery) values() []any {
	return []any{nullInt(d.TenantID), d.Consumer, d.EventID, d.EventType, nullInt(d.OutboxID), d.AggregateType, d.AggregateID, d.Attempts}
}

// Note is what a handler recorded about its delivery.
type Note struct {
	EventID        string
	IdempotencyKey string // business key, at most 255 bytes; empty for none
	Result         any    // stored as JSON; nil for none
}

// Annotate stores the notes of deliveries that are marked SUCCESS in tx.
func (l *Log) Annotate(ctx context.Context, tx bun.Tx, consumer string, notes []Note) error {
	for _, n := range notes {
		var result any
		if n.Result != nil {
			b, err := json.Marshal(n.Result)
			if err != nil {
				return fmt.Errorf("consume log: result of event %s cannot be encoded: %w", n.EventID, err)
			}
			if _, replaced := text.Inspect(b); replaced {
				return fmt.Errorf("consume log: result of event %s has a string that is not valid UTF-8: it would not be stored as it is", n.EventID)
			}
			result = string(b)
		}
		if n.IdempotencyKey != "" {
			if err := text.Key("idempotency key", n.IdempotencyKey, 255); err != nil {
				return fmt.Errorf("consume log: event %s: %w", n.EventID, err)
			}
		}
		_, err := tx.ExecContext(ctx, "UPDATE "+table+" SET idempotency_key = ?, consume_result = ? WHERE consumer_name = ? AND event_id = ?",
			nullText(n.IdempotencyKey), result, consumer, n.EventID)
		if err != nil {
			return fmt.Errorf("consume log: record result of event %s: %w", n.EventID, err)
		}
	}
	return nil
}

// Marked reports whether the deliveries of all the events have SUCCESS rows.
func (l *Log) Marked(ctx context.Context, idb bun.IDB, consumer string, eventIDs []string) (bool, error) {
	var n int
	err := idb.QueryRowContext(ctx, "SELECT "+countSuccess+" FROM "+table+" WHERE consumer_name = ? AND event_id IN (?)",
		consumer, bun.List(eventIDs)).Scan(&n)
	if err != nil {
		return false, fmt.Errorf("consume log: verify deliveries: %w", err)
	}
	return n == len(eventIDs), nil
}

// countSuccess stands outside the WHERE: inside, PostgreSQL without statistics would choose the
// index over states.
const countSuccess = "COUNT(CASE WHEN status = 'SUCCESS' THEN 1 END)"

// Held is what the last look before COMMIT saw.
type Held struct {
	Marked bool  // tx still holds the SUCCESS row: a transaction that the server silently ended has lost it
	Leased bool  // the event is still leased by its owner under the given lock version
	Now    int64 // in microseconds since the epoch, by the database's clock, to see if other leases are out
}

// Holds takes the last look before COMMIT, at one delivery of the transaction.
func (l *Log) Holds(ctx context.Context, tx bun.Tx, consumer, eventID, owner string, lease dialect.Pair) (h Held, err error) {
	rows, err := l.stmts.On(tx).QueryContext(ctx, "SELECT (SELECT "+countSuccess+" FROM "+table+" WHERE consumer_name = ? AND event_id = ?), "+
		"(SELECT COUNT(CASE WHEN lock_version = ? AND locked_by = ? AND status = 'DISPATCHING' THEN 1 END) FROM "+eventTable+" WHERE id = ?), "+l.d.Micros(l.d.Now),
		consumer, eventID, lease.Version, owner, lease.ID)
	if err != nil {
		return h, fmt.Errorf("consume log: verify deliveries: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		if err := rows.Scan(&h.Marked, &h.Leased, &h.Now); err != nil {
			return h, fmt.Errorf("consume log: verify deliveries: %w", err)
		}
	}
	return h, rows.Err()
}

const (
	// rowsPerStatement keeps a statement with the values of many deliveries well below what databases take at once.
	rowsPerStatement = 1000
	// fewConsumers is up to how many consumers each gets a statement of its own, where that is the cheaper way to copy columns.
	fewConsumers  = 8
	insertWaiting = insertInto + ", status, next_retry_at, started) "
)

// waitsAs is how deliveries without a row begin to wait.
type waitsAs struct{ left, suspect bool }

// Defer inserts PENDING rows for deliveries that cannot run now, due after delay, or never if they are left to others.
// A delivery that has a row already is left as it is.
func (l *Log) Defer(ctx context.Context, idb bun.IDB, ds []Delivery, delay time.Duration) error {
	groups := make(map[waitsAs]map[string][]Delivery)
	for _, d := range ds {
		how := waitsAs{d.Left, d.Suspect}
		if groups[how] == nil {
			groups[how] = make(map[string][]Delivery)
		}
		groups[how][d.Consumer] = append(groups[how][d.Consumer], d)
	}
	for _, how := range []waitsAs{{}, {suspect: true}, {left: true}, {left: true, suspect: true}} {
		if err := l.deferAs(ctx, idb, groups[how], how, delay); err != nil {
			return fmt.Errorf("consume log: queue deliveries: %w", err)
		}
	}
	return nil
}

// deferAs inserts the PENDING rows of deliveries, by their consumers, that wait in one way.
func (l *Log) deferAs(ctx context.Context, idb bun.IDB, groups map[string][]Delivery, how waitsAs, delay time.Duration) error {
	keys := slices.Sorted(maps.Keys(groups)) // who writes many does it in one order
	if l.d.SelectsFreely && len(keys) <= fewConsumers {
		for _, key := range keys {
			for chunk := range slices.Chunk(groups[key], dialect.MostIDs) {
				if err := l.deferOf(ctx, idb, chunk, how, delay); err != nil {
					return err
				}
			}
		}
		return nil
	}
	var untried []Delivery
	for _, key := range keys {
		for _, d := range groups[key] {
			d.Attempts = 0
			untried = append(untried, d)
		}
	}
	due := l.after(delay)
	if how.left {
		due = l.d.Never
	}
	for chunk := range slices.Chunk(untried, rowsPerStatement) {
		if _, err := idb.ExecContext(ctx, insertWaiting+l.valuesOf(chunk, how.columns(due))+l.d.Ignore(uniqueEvent)); err != nil {
			return err
		}
	}
	return nil
}

// deferOf inserts the PENDING rows of one consumer by what stands in their events.
func (l *Log) deferOf(ctx context.Context, idb bun.IDB, ds []Delivery, how waitsAs, delay time.Duration) error {
	due, args := l.d.After, []any{ds[0].Consumer, 0, dialect.Micro(delay), outboxIDs(ds)}
	if how.left {
		due, args = l.d.Never, []any{ds[0].Consumer, 0, outboxIDs(ds)}
	}
	_, err := l.stmts.On(idb).ExecContext(ctx, insertWaiting+fromEvents+how.columns(due)+" FROM "+eventTable+" AS e WHERE e.id IN (?)"+inOrder+l.d.Ignore(uniqueEvent), args...)
	return err
}

// columns are the values of those of insertWaiting that follow the delivery's own.
func (how waitsAs) columns(due string) string {
	return ", 'PENDING', " + due + ", " + strconv.Itoa(startedIf(how.suspect))
}

// after is the instant that lies d after now, as text without an argument.
func (l *Log) after(d time.Duration) string {
	return strings.Replace(l.d.After, "?", strconv.FormatInt(dialect.Micro(d), 10), 1)
}

func outboxIDs(ds []Delivery) []int64 {
	ids := make([]int64, len(ds))
	for i, d := range ds {
		ids[i] = d.OutboxID
	}
	return ids
}

// Verdict is how an attempt that did not succeed leaves its delivery.
type Verdict struct {
	Status Status        // Failed, Pending, Dead or Skipped
	Delay  time.Duration // until the next attempt, for Failed and Pending
	Error  string        // why, for people
	Counts bool          // whether the attempt counts as one
}

func (v Verdict) retry() *time.Duration {
	if v.Status.Waiting() {
		return &v.Delay
	}
	return nil
}
