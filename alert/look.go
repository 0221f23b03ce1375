package alert

import (
	"context"
	"fmt"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/store/view"
)

// look is one look at the tables. Every statement of it is served by an index, and reads at most
// countCap+1 rows of each kind.
type look struct {
	db  bun.IDB
	d   dialect.Dialect
	cfg Config
	now int64 // by the database's clock, in microseconds

	consumers  []store.ConsumerState
	queued     []store.Queue     // that are not empty
	unattended []view.Unattended // what waits although nobody works on it
	found      []signal
}

// all looks for every condition that all instances share.
func (l *look) all(ctx context.Context) ([]signal, error) {
	if err := l.db.QueryRowContext(ctx, "SELECT "+l.d.Micros(l.d.Now)).Scan(&l.now); err != nil {
		return nil, fmt.Errorf("read the time: %w", err)
	}
	for _, part := range []struct {
		what string
		do   func(ctx context.Context) error
	}{
		{"consumers", l.readConsumers},
		{"work of consumers", l.readUnattended},
		{"deliveries", l.deliveries},
		{"events", l.events},
		{"attempts", l.attempts},
		{"jobs", l.jobs},
		{"reservations", l.reservations},
	} {
		if err := part.do(ctx); err != nil {
			return nil, fmt.Errorf("look at the %s: %w", part.what, err)
		}
	}
	return l.found, nil
}

func (l *look) add(s signal) { l.found = append(l.found, s) }

// ask asks the questions of the look.
func (l *look) ask() store.Conditions { return store.NewConditions(l.d) }

// age is how long ago a time is.
func (l *look) age(since int64) time.Duration {
	return max(time.Duration(l.now-since)*time.Microsecond, 0)
}

// exceeds reports whether an age is over a limit that is not turned off.
func exceeds(age, limit time.Duration) bool { return limit >= 0 && age > limit }

// events finds those that nobody has got yet, and those that wait for an operator.
func (l *look) events(ctx context.Context) error {
	open, err := l.ask().OpenEvents(ctx, l.db, countCap+1)
	if err != nil {
		return err
	}
	waiting := make(map[string]store.Tally)
	for _, o := range open {
		limits := l.cfg.limits("", o.EventType)
		switch o.Kind {
		case store.OpenParked:
			if exceeds(l.age(o.Since), limits.Unconsumed) {
				l.add(signal{
					rule: RuleUnconsumed, eventType: o.EventType, count: o.Count, since: o.Since,
					says: upTo(o.Count, "event", "events") + " of the type " + o.EventType + " wait, and no consumer of that type is registered",
				})
			}
		case store.OpenDead:
			if limits.Dead > 0 && o.Count >= limits.Dead {
				l.add(signal{
					rule: RuleDead, eventType: o.EventType, count: o.Count, since: o.Since,
					says: upTo(o.Count, "event", "events") + " of the type " + o.EventType + " are DEAD without a DEAD delivery, and wait for an operator",
				})
			}
		case store.OpenNew, store.OpenLeased, store.OpenDue:
			waiting[o.EventType] = plus(waiting[o.EventType], o.Tally)
		}
	}
	return l.waiting(ctx, waiting)
}

// plus is both tallies together.
func plus(t, o store.Tally) store.Tally {
	if t.Count == 0 || (o.Count > 0 && o.Since < t.Since) {
		t.Since = o.Since
	}
	t.Count += o.Count
	return t
}

// waiting judges events that are due and that no consumer has got, by type.
func (l *look) waiting(ctx context.Context, byType map[string]store.Tally) error {
	var all store.Tally
	for eventType, t := range byType {
		all = plus(all, t)
		if age := l.age(t.Since); exceeds(age, l.cfg.limits("", eventType).OldestAge) {
			l.add(signal{
				rule: RuleLate, eventType: eventType, count: t.Count, since: t.Since,
				says: fmt.Sprintf("the oldest of %s of the type %s has been waiting for %s to be delivered", upTo(t.Count, "event", "events"),
					eventType, span(age)),
			})
		}
	}
	limit := l.cfg.Limits.Stalled
	if all.Count == 0 || !exceeds(l.age(all.Since), limit) {
		return nil
	}
	// What was delivered latest is among the newest rows, unless only retries succeed.
	last, err := l.ask().LastDelivered(ctx, l.db, 1000)
	if err != nil || !exceeds(l.age(last), limit) {
		return err
	}
	l.add(signal{
		rule: RuleStalled, subject: "deliveries", count: all.Count, since: max(last, all.Since),
		says: fmt.Sprintf("%s due, and nothing has been delivered for %s", upTo(all.Count, "event is", "events are"),
			span(l.age(max(last, all.Since)))),
	})
	return nil
}

// reservations finds those of the ledger whose time to live is over, and whose producers have not said what has become of them.
func (l *look) reservations(ctx context.Context) error {
	waiting, err := l.ask().Unanswered(ctx, l.db, countCap+1)
	if err != nil {
		return err
	}
	for _, r := range waiting {
		if !exceeds(l.age(r.Since), l.cfg.limits("", r.EventType).Reservation) {
			continue
		}
		l.add(signal{
			rule: RuleReservation, eventType: r.EventType, count: r.Count, since: r.Since,
			says: fmt.Sprintf("no producer says what has become of %s of the type %s: the time to live of the first was over %s ago",
				upTo(r.Count, "reservation", "reservations"), r.EventType, span(l.age(r.Since))),
		})
	}
	return nil
}
