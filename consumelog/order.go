package consumelog

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/store"
)

// Gate is the question whether a consumer may run an event now.
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

// Asked is a delivery that asks whether it may run.
type Asked struct {
	// Event is its outbox id and, unless 0, the version of the outbox lease that the gate's owner believes it holds.
	Event dialect.Pair
	// Aggregate is that of the event.
	Aggregate store.Aggregate
}

// Ask answers for each delivery, by outbox id.
//
// An event is blocked while an earlier event of its aggregate, of a type that any release of the consumer takes, is not
// SENT and has no SUCCESS or SKIPPED row for the consumer, whatever else is its state. It is also blocked while
// another instance runs a delivery of its aggregate to the consumer: an event that its producer delayed takes its place
// in the order when it is first claimed, behind what runs then.
func (l *Log) Ask(ctx context.Context, idb bun.IDB, g Gate, asked []Asked) (map[int64]Answer, error) {
	answers := make(map[int64]Answer, len(asked))
	for chunk := range slices.Chunk(asked, dialect.MostIDs) {
		if err := l.ask(ctx, idb, g, chunk, answers); err != nil {
			return nil, fmt.Errorf("consume log: %w", err)
		}
	}
	return answers, nil
}

// ask asks once for each aggregate, by one of its events. Should that one be gone, it asks by the next.
func (l *Log) ask(ctx context.Context, idb bun.IDB, g Gate, asked []Asked, answers map[int64]Answer) error {
	q := store.Question{Consumer: g.Consumer, Types: g.Types, PassDead: g.PassDead, LogOnly: g.Replay, Owner: g.Owner, TrustOwner: g.trustMine}
	for len(asked) > 0 {
		ids, heads := make([]int64, len(asked)), make(map[store.Aggregate]int64, len(asked))
		for i, a := range asked {
			ids[i] = a.Event.ID
			if _, ok := heads[a.Aggregate]; !ok {
				heads[a.Aggregate] = a.Event.ID
			}
		}
		var first []int64
		if g.Ordered {
			first = slices.Sorted(maps.Values(heads))
		}
		found, err := l.order.Ask(ctx, idb, q, ids, first)
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
				answers[a.Event.ID] = g.answer(a, s, head.Ahead)
			}
		}
		asked = again
	}
	return nil
}

// answer says what a standing means for a delivery.
func (g Gate) answer(a Asked, s store.Standing, ahead store.Ahead) Answer {
	switch {
	case s.Status == "SENT":
		return Closed
	case a.Event.Version != 0 && (s.Version != a.Event.Version || s.Status != "DISPATCHING" || s.Owner != g.Owner):
		return Lost
	case g.Ordered && ahead.Before(a.Event.ID):
		return Blocked
	}
	return Open
}

// wakeMost is how many deliveries of an aggregate one that ends wakes at most: they wake those behind them.
const wakeMost = 100

// WakeNext makes the next waiting deliveries of the same aggregates due at once, after the given ones have got out of
// their way. They take the place of their age: behind all that is due, they would wait for a backlog to be worked off
// that is younger than they are, and with them whatever waits for them. It tells how many it has woken.
func (l *Log) WakeNext(ctx context.Context, idb bun.IDB, consumers []string, ended ...Delivery) (woken int, err error) {
	last := make(map[store.Aggregate]int64, len(ended))
	for _, d := range ended {
		last[d.Aggregate()] = max(last[d.Aggregate()], d.OutboxID)
	}
	heads := slices.Sorted(maps.Values(last))
	for _, consumer := range consumers {
		for chunk := range slices.Chunk(heads, dialect.MostIDs) {
			n, err := l.wake(ctx, idb, consumer, chunk)
			if err != nil {
				return woken, fmt.Errorf("consume log: wake deliveries of %s: %w", consumer, err)
			}
			woken += n
		}
	}
	return woken, nil
}

func (l *Log) wake(ctx context.Context, idb bun.IDB, consumer string, heads []int64) (woken int, err error) {
	waiting, err := l.order.Sleeping(ctx, idb, consumer, heads, wakeMost)
	if err != nil || len(waiting) == 0 {
		return 0, err
	}
	return len(waiting), l.wakeUp(ctx, idb, waiting)
}

// untilNextLook is when to look again at a delivery that somebody will wake: half its age, in powers of
// two seconds, so that many are put off together.
func untilNextLook(age time.Duration) time.Duration {
	delay := time.Second
	for delay < time.Minute && 4*delay <= age {
		delay *= 2
	}
	return delay
}

// wakeOpen asks again, after the claim, about what it has put off for long. What was in the way may have ended between
// the question and the COMMIT: whoever ended it has not seen that there is somebody to wake.
func (l *Log) wakeOpen(ctx context.Context, g Gate, asleep []Leased) (woken int, err error) {
	asked := make([]Asked, len(asleep))
	for i, d := range asleep {
		asked[i] = Asked{Event: dialect.Pair{ID: d.OutboxID}, Aggregate: d.Aggregate()}
	}
	answers, err := l.Ask(ctx, l.db, g, asked)
	if err != nil {
		return 0, err
	}
	var open []int64
	for _, d := range asleep {
		if a := answers[d.OutboxID]; a == Open || a == Gone {
			open = append(open, d.ID)
		}
	}
	if len(open) == 0 {
		return 0, nil
	}
	return len(open), l.wakeUp(ctx, l.db, open)
}

// wakeUp makes deliveries that wait due, at the place of their age.
func (l *Log) wakeUp(ctx context.Context, idb bun.IDB, ids []int64) error {
	due := "CASE WHEN e.created_at < " + l.d.Now + " THEN e.created_at ELSE " + l.d.Now + " END" // a clock may have been ahead
	_, err := idb.ExecContext(ctx, l.d.UpdateIDs(table, dialect.Pairs(ids), "next_retry_at = "+due, "e.status = 'PENDING'"))
	return err
}
