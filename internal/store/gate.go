package store

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

// Gate is what a consumer asks before it runs events: is an earlier event of their aggregate unfinished for it?
//
// The answer has two halves, each one look at an index, however much is open: the first delivery of the aggregate in
// the consumer's part of the log that is not done, and the first event in hand that has no row there yet. Together they
// say the same as "any earlier event", which internal/model shows.
type Gate struct {
	// Consumer is the consumer's key.
	Consumer string
	// Types are the event types the consumer handles here; what other releases take is in the registry.
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
	// Marked says that the consumer has a row in the log for each event that is asked about, which need not be looked for then.
	Marked bool
	// IsFilled says that a backfill of the consumer is open: events wait behind past ones that it still has to give.
	IsFilled bool
	// TrustsOwner also passes earlier events whose delivery is leased by Owner.
	TrustsOwner bool
}

// Answer is what the gate says of one event.
type Answer string

// The answers of the gate.
const (
	// MayRun means the delivery may run.
	MayRun Answer = "open"
	// Blocked means an earlier event of the aggregate is unfinished for the consumer.
	Blocked Answer = "blocked"
	// Lost means the outbox lease has passed to another instance.
	Lost Answer = "lost"
	// Closed means the event is SENT: there is nothing left to deliver.
	Closed Answer = "closed"
	// Gone means the event's row does not exist any more.
	Gone Answer = "gone"
)

// Asked is a delivery that asks whether it may run.
type Asked struct {
	// Event is its outbox id and, unless 0, the version of the outbox lease that the gate's owner believes it holds.
	Event dialect.Pair
	// Aggregate is that of the event.
	Aggregate Aggregate
}

// Ask answers for each delivery, by outbox id.
//
// An event is blocked while an earlier event of its aggregate, of a type that any release of the consumer takes, is not
// SENT and has no SUCCESS or SKIPPED row for the consumer, whatever else is its state. It is also blocked while
// another instance runs a delivery of its aggregate to the consumer: an event that its producer delayed takes its place
// in the order when it is first claimed, behind what runs then.
func (o Order) Ask(ctx context.Context, idb bun.IDB, g Gate, asked []Asked) (map[int64]Answer, error) {
	answers := make(map[int64]Answer, len(asked))
	for chunk := range slices.Chunk(asked, dialect.MostIDs) {
		if err := o.ask(ctx, idb, g, chunk, answers); err != nil {
			return nil, fmt.Errorf("consume log: %w", err)
		}
	}
	return answers, nil
}

// ask asks once for each aggregate, by its first event. Should that one be gone, it asks by the next.
func (o Order) ask(ctx context.Context, idb bun.IDB, g Gate, asked []Asked, answers map[int64]Answer) error {
	for len(asked) > 0 {
		ids, heads, last := make([]int64, len(asked)), make(map[Aggregate]int64, len(asked)), make(map[int64]int64, len(asked))
		for i, a := range asked {
			ids[i] = a.Event.ID
			if head, ok := heads[a.Aggregate]; !ok || a.Event.ID < head {
				heads[a.Aggregate] = a.Event.ID
			}
		}
		for _, a := range asked {
			head := heads[a.Aggregate]
			last[head] = max(last[head], a.Event.ID)
		}
		var first []int64
		if g.Ordered {
			first = slices.Sorted(maps.Keys(last))
		}
		past, err := o.firstPast(ctx, idb, g, last)
		if err != nil {
			return fmt.Errorf("look for past events: %w", err)
		}
		found, err := o.standings(ctx, idb, g, ids, first)
		if err == nil {
			err = o.lookElsewhere(ctx, idb, g, heads, found)
		}
		if err != nil {
			return err
		}
		var again []Asked
		for _, a := range asked {
			s, there := found[a.Event.ID]
			head, known := found[heads[a.Aggregate]]
			switch {
			case !there:
				answers[a.Event.ID] = Gone
			case g.Ordered && !known:
				again = append(again, a)
			default:
				head.Ahead.Past = past[heads[a.Aggregate]]
				answers[a.Event.ID] = g.answer(a, s, head.Ahead)
			}
		}
		asked = again
	}
	return nil
}

// lookElsewhere completes what is ahead in aggregates in which a delivery waits that nobody runs elsewhere. One that comes into the log
// behind later ones of its aggregate, because its producer delayed it, or an operator or a backfill gave it again, stands before what
// another instance runs, and hides it. Leases are few, however much waits.
func (o Order) lookElsewhere(ctx context.Context, idb bun.IDB, g Gate, heads map[Aggregate]int64, found map[int64]Standing) error {
	isHiding := func(id int64) bool { return found[id].Ahead.Waiting != 0 && found[id].Ahead.Running == 0 }
	if !g.Ordered || !slices.ContainsFunc(slices.Collect(maps.Values(heads)), isHiding) {
		return nil
	}
	leased, err := o.leasedElsewhere(ctx, idb, g)
	if err != nil {
		return fmt.Errorf("look for what other instances run: %w", err)
	}
	leased = slices.DeleteFunc(leased, func(l elsewhere) bool { // what is ahead is waited for, whoever runs it
		id, isAsked := heads[l.aggregate]
		return !isAsked || l.event <= id
	})
	abandoned, err := o.abandoned(ctx, idb, leased)
	if err != nil {
		return fmt.Errorf("look for what other instances run: %w", err)
	}
	for _, l := range leased {
		if s, isThere := found[heads[l.aggregate]]; isThere && !abandoned[l.id] {
			s.Ahead.Running = l.event
			found[heads[l.aggregate]] = s
		}
	}
	return nil
}

// leasedElsewhere are the deliveries to the consumer that other instances have leased, along idx_consumer_due. The lease of one whose
// transaction takes longer is over: [Leases.Renew] passes over a row that its handler's transaction has locked.
func (o Order) leasedElsewhere(ctx context.Context, idb bun.IDB, g Gate) ([]elsewhere, error) {
	return readElsewhere(o.stmts.On(idb).QueryContext(ctx, "SELECT id, COALESCE(outbox_id, 0), COALESCE(tenant_id, 0), "+
		"COALESCE(aggregate_type, ''), COALESCE(aggregate_id, ''), CASE WHEN next_retry_at > "+o.d.Now+" THEN 1 ELSE 0 END FROM "+
		o.d.DueDeliveries(deliveryTable)+" WHERE consumer_name = ? AND status = 'PROCESSING'"+inDueIndex+" AND locked_by <> ?",
		g.Consumer, g.Owner))
}

// elsewhere is a delivery that another instance has leased.
type elsewhere struct {
	id, event int64 // of the delivery's row, and of the event in the outbox
	aggregate Aggregate
	isValid   bool // the lease is not over
}

func readElsewhere(rows *sql.Rows, err error) (leased []elsewhere, _ error) {
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var l elsewhere
		if err := rows.Scan(&l.id, &l.event, (*tenant)(&l.aggregate.Tenant), &l.aggregate.Type, &l.aggregate.ID, &l.isValid); err != nil {
			return nil, err
		}
		leased = append(leased, l)
	}
	return leased, rows.Err()
}

// abandoned tells of which deliveries the lease is over and no transaction of a handler has locked the row, by the primary key.
func (o Order) abandoned(ctx context.Context, idb bun.IDB, leased []elsewhere) (map[int64]bool, error) {
	var over []int64
	for _, l := range leased {
		if !l.isValid {
			over = append(over, l.id)
		}
	}
	abandoned := make(map[int64]bool)
	for chunk := range slices.Chunk(over, dialect.MostIDs) {
		ids, err := readIDs(idb.QueryContext(ctx, "SELECT e.id FROM "+o.d.Keyed(deliveryTable)+" WHERE e.id IN (?)"+o.d.SkipLocked,
			bun.List(chunk)))
		if err != nil {
			return nil, err
		}
		for _, id := range ids {
			abandoned[id] = true
		}
	}
	return abandoned, nil
}

// answer says what a standing means for a delivery.
func (g Gate) answer(a Asked, s Standing, ahead Ahead) Answer {
	switch {
	case s.Status == "SENT":
		return Closed
	case a.Event.Version != 0 && (s.Version != a.Event.Version || s.Status != "DISPATCHING" || s.Owner != g.Owner):
		return Lost
	case g.Ordered && ahead.Before(a.Event.ID):
		return Blocked
	}
	return MayRun
}
