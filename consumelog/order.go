package consumelog

import (
	"context"
	"fmt"
	"slices"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

// Gate is the question whether a consumer may run an event now.
type Gate struct {
	// Consumer is the consumer's key.
	Consumer string
	// Types are the event types the consumer handles, here or anywhere else.
	Types []string
	// Ordered consumers wait for every earlier event of the aggregate.
	Ordered bool
	// PassDead lets events pass an earlier one that is DEAD for this consumer.
	PassDead bool
	// Replay says that these are replays: they wait only for earlier replays, not for events that
	// nobody replays.
	Replay bool
	// Owner is the instance that asks. It must hold the outbox lease of every
	// event that is asked for with a lock version.
	Owner string
	// trustMine also passes earlier events whose delivery is leased by Owner.
	trustMine bool
}

// Answer is what the gate says of one event.
type Answer string

// The answers of the gate.
const (
	// Open means the delivery may run.
	Open Answer = "open"
	// Blocked means an earlier event of the aggregate is unfinished for the consumer.
	Blocked Answer = "blocked"
	// Lost means the outbox lease has passed to somebody else.
	Lost Answer = "lost"
	// Closed means the event is SENT: there is nothing left to deliver.
	Closed Answer = "closed"
	// Gone means the event's row does not exist any more.
	Gone Answer = "gone"
)

// Ask answers for each outbox id of pairs. A pair's version, unless 0, is the
// lock version of the outbox lease that Owner believes it holds.
//
// An event is blocked while an earlier event of its aggregate, of a type the
// consumer handles, is not SENT and has no SUCCESS or SKIPPED row for the
// consumer, whatever else is its state. An event that its producer delayed takes
// its place in the order when it falls due.
func (l *Log) Ask(ctx context.Context, idb bun.IDB, g Gate, pairs []dialect.Pair) (map[int64]Answer, error) {
	answers := make(map[int64]Answer, len(pairs))
	for chunk := range slices.Chunk(pairs, dialect.MostIDs) {
		found, err := l.ask(ctx, idb, g, idsOf(chunk))
		if err != nil {
			return nil, fmt.Errorf("consume log: check order: %w", err)
		}
		for _, p := range chunk {
			answers[p.ID] = Gone
			if a, ok := found[p.ID]; ok {
				answers[p.ID] = a.answer(g.Owner, p.Version)
			}
		}
	}
	return answers, nil
}

func (l *Log) ask(ctx context.Context, idb bun.IDB, g Gate, ids []int64) (map[int64]asked, error) {
	blocked, args := l.blocked(g)
	rows, err := l.stmts.On(idb).QueryContext(ctx, "SELECT e.id, e.status, e.lock_version, COALESCE(e.locked_by, ''), "+blocked+" FROM "+l.d.Keyed(eventTable)+" WHERE e.id IN (?)", append(args, ids)...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	found := make(map[int64]asked, len(ids))
	for rows.Next() {
		var id int64
		var a asked
		if err := rows.Scan(&id, &a.status, &a.version, &a.owner, &a.blocked); err != nil {
			return nil, err
		}
		found[id] = a
	}
	return found, rows.Err()
}

func idsOf(pairs []dialect.Pair) []int64 {
	ids := make([]int64, len(pairs))
	for i, p := range pairs {
		ids[i] = p.ID
	}
	return ids
}

// asked is what the database says of an event.
type asked struct {
	status, owner string
	version       int64
	blocked       bool
}

func (a asked) answer(owner string, version int64) Answer {
	switch {
	case a.status == "SENT":
		return Closed
	case version != 0 && (a.version != version || a.status != "DISPATCHING" || a.owner != owner):
		return Lost
	case a.blocked:
		return Blocked
	}
	return Open
}

// blocked is an expression that is 1 if an earlier event is in the way of the event e.
func (l *Log) blocked(g Gate) (string, []any) {
	if !g.Ordered {
		return "0", nil
	}
	done := "'SUCCESS', 'SKIPPED'"
	if g.PassDead {
		done += ", 'DEAD'"
	}
	mine, args := "", []any{g.Types}
	if g.trustMine {
		mine = " OR (l.status = 'PROCESSING' AND l.locked_by = ? AND l.next_retry_at > " + l.d.Now + ")"
		args = append(args, g.Owner)
	}
	unfinished := "0 = (SELECT COUNT(CASE WHEN l.status IN (" + done + ")" + mine + " THEN 1 END)"
	if g.Replay {
		unfinished = "0 < (SELECT COUNT(CASE WHEN NOT (l.status IN (" + done + ")" + mine + ") THEN 1 END)"
	}
	// The status stands outside the WHERE of the inner query: inside, PostgreSQL would choose
	// the index over states as long as it has no statistics.
	return `CASE WHEN EXISTS (SELECT 1 FROM ` + eventTable + ` p
		WHERE ` + l.d.Siblings("p", "e") + ` AND p.id < e.id AND p.event_type IN (?)
		AND NOT (p.status = 'SCHEDULED' AND p.lock_version = 0 AND p.next_retry_at > ` + l.d.Now + `)
		AND ` + unfinished + ` FROM ` + table + ` l
			WHERE l.consumer_name = ? AND l.event_id = p.event_id)) THEN 1 ELSE 0 END`, append(args, g.Consumer)
}

// WakeNext makes the waiting deliveries of later events of the same aggregates due at once,
// after the given ones have got out of their way.
func (l *Log) WakeNext(ctx context.Context, idb bun.IDB, consumers []string, ended ...Delivery) error {
	for chunk := range slices.Chunk(ended, dialect.MostIDs) {
		waiting, err := l.waitingBehind(ctx, idb, consumers, chunk)
		if err != nil {
			return fmt.Errorf("consume log: look behind finished deliveries: %w", err)
		}
		if len(waiting) == 0 {
			continue
		}
		if _, err := idb.ExecContext(ctx, l.d.UpdateIDs(table, waiting, "next_retry_at = "+l.d.Now, "e.status = 'PENDING'")); err != nil {
			return fmt.Errorf("consume log: wake waiting deliveries: %w", err)
		}
	}
	return nil
}

func (l *Log) waitingBehind(ctx context.Context, idb bun.IDB, consumers []string, ended []Delivery) (waiting []dialect.Pair, err error) {
	rows, err := l.stmts.On(idb).QueryContext(ctx, "SELECT DISTINCT l.id FROM "+l.d.Keyed(eventTable)+l.d.Open(eventTable, "n", "e", "n.id > e.id")+
		l.d.Join(table+" AS l", "l", "l.event_id = n.event_id AND l.consumer_name IN (?) AND l.status = 'PENDING' AND l.next_retry_at > "+l.d.Now)+" WHERE e.id IN (?) ORDER BY l.id LIMIT 500", consumers, outboxIDs(ended))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		waiting = append(waiting, dialect.Pair{ID: id})
	}
	return waiting, rows.Err()
}

func (l *Log) column(ctx context.Context, idb bun.IDB, query string, args ...any) ([]string, error) {
	rows, err := idb.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, fmt.Errorf("consume log: %w", err)
	}
	defer rows.Close()
	var out []string
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			return nil, fmt.Errorf("consume log: %w", err)
		}
		out = append(out, s)
	}
	return out, rows.Err()
}
