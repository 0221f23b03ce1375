package alert

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/store/view"
)

// absent reports whether no instance has had the consumer for too long.
func (l *look) absent(c store.ConsumerState) bool {
	return exceeds(l.age(c.Seen), l.cfg.limits(c.Name, "").Unregistered)
}

// isAway reports whether no instance has had the consumer for so long that it is told even if nothing waits for it, or if it
// is paused: to resume it would deliver nothing.
func (l *look) isAway(c store.ConsumerState) bool {
	return c.Seen != 0 && l.absent(c) && l.age(c.Seen) > store.AbsentAfter && !strings.HasSuffix(c.Name, "@replay")
}

// readConsumers reads the registry and the names that deliveries carry.
func (l *look) readConsumers(ctx context.Context) error {
	consumers, err := l.ask().Consumers(ctx, l.db)
	if err != nil {
		return err
	}
	l.consumers = consumers
	if err := l.readNames(ctx); err != nil {
		return err
	}
	return l.paused(ctx)
}

// readNames reads which queues are not empty, and adds the consumers that only deliveries name.
func (l *look) readNames(ctx context.Context) error {
	queues, err := store.Queued(ctx, l.db, l.d)
	if err != nil {
		return err
	}
	l.queued = store.In(queues, "PENDING", "FAILED", "PROCESSING", "DEAD")
	known := make(map[string]bool, len(l.consumers))
	for _, c := range l.consumers {
		known[c.Name] = true
	}
	for _, q := range l.queued {
		if !known[q.Consumer] {
			known[q.Consumer] = true
			l.consumers = append(l.consumers, store.ConsumerState{Name: q.Consumer})
		}
	}
	return nil
}

// paused judges the consumers that an operator has stopped.
func (l *look) paused(ctx context.Context) error {
	var names []string
	for _, c := range l.consumers {
		if c.IsPaused {
			names = append(names, c.Name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	since, err := l.ask().PausedSince(ctx, l.db, names)
	if err != nil {
		return err
	}
	for _, c := range l.consumers {
		at := since[c.Name]
		if !c.IsPaused || !exceeds(l.age(at), l.cfg.limits(c.Name, "").Paused) {
			continue
		}
		says := "the consumer " + c.Name + " is paused, since a time that nobody has written down"
		if at > 0 {
			says = fmt.Sprintf("the consumer %s has been paused for %s by %s", c.Name, span(l.age(at)), c.PausedBy)
		}
		l.add(signal{rule: RulePaused, consumer: c.Name, count: 1, since: at, says: says})
	}
	return nil
}

// deliveries judges what waits for the consumers, and what is DEAD.
func (l *look) deliveries(ctx context.Context) error {
	states, err := l.ask().QueueStates(ctx, l.db, l.queued, countCap+1)
	if err != nil {
		return err
	}
	queues := make(map[string][]store.QueueState)
	for _, q := range states {
		queues[q.Consumer] = append(queues[q.Consumer], q)
	}
	for _, c := range l.consumers {
		l.judge(c, queues[c.Name])
	}
	return nil
}

// judge finds what is wrong with the queues of a consumer.
func (l *look) judge(c store.ConsumerState, queues []store.QueueState) {
	waiting, uncounted, left := make(map[string]store.Tally), make(map[string]store.Tally), make(map[string]store.Tally)
	var all store.Tally
	for _, q := range queues {
		if q.Status == "DEAD" {
			if limit := l.cfg.limits(c.Name, q.EventType).Dead; limit > 0 && q.All.Count >= limit {
				l.add(signal{
					rule: RuleDead, consumer: c.Name, eventType: q.EventType, count: q.All.Count, since: q.Changed,
					says: upTo(q.All.Count, "delivery", "deliveries") + " of " + q.EventType + " to " + c.Name + " " + are(q.All.Count) + " DEAD and " +
						plural(q.All.Count, "waits", "wait") + " for an operator",
				})
			}
			continue
		}
		all = plus(all, q.All)
		waiting[q.EventType] = plus(waiting[q.EventType], q.All)
		left[q.EventType] = plus(left[q.EventType], q.Left)
		if q.Uncounted.Count > 0 {
			uncounted[q.EventType] = plus(uncounted[q.EventType], q.Uncounted)
		}
	}
	replay, isGone := l.nobodyDoes(view.GoneReplay, c.Name, "")
	switch {
	case c.IsPaused && !l.isAway(c): // that is why they wait
	case isGone && exceeds(replay.For, l.cfg.limits(c.Name, "").Unregistered):
		l.add(signal{
			rule: RuleReplay, consumer: c.Name, count: all.Count, since: replay.Since.UnixMicro(),
			says: upTo(all.Count, "replay", "replays") + " " + plural(all.Count, "waits", "wait") + " for " + store.ReplayOf(c.Name) +
				", of which no instance runs replays: for " + span(replay.For),
		})
	case isGone: // a release that runs them may be on its way
	case l.absent(c) && all.Count > 0 && !c.IsPaused:
		since, seen := c.Seen, "for "+span(l.age(c.Seen))
		if c.Seen == 0 {
			since, seen = all.Since, "for as long as is known"
		}
		l.add(signal{
			rule: RuleUnregistered, consumer: c.Name, count: all.Count, since: since,
			says: upTo(all.Count, "delivery", "deliveries") + " " + plural(all.Count, "waits", "wait") + " for the consumer " + c.Name +
				", which no instance has had " + seen,
		})
	case l.isAway(c):
		l.add(signal{
			rule: RuleUnregistered, consumer: c.Name, count: 1, since: c.Seen,
			says: "no instance has had the consumer " + c.Name + " for " + span(l.age(c.Seen)) + ": events wait for it",
		})
	default:
		l.late(c, waiting, uncounted, left)
	}
}

// late judges deliveries that wait for a consumer that runs.
func (l *look) late(c store.ConsumerState, waiting, uncounted, left map[string]store.Tally) {
	for eventType, t := range waiting {
		limits := l.cfg.limits(c.Name, eventType)
		if gone, ok := l.nobodyDoes(view.GoneType, c.Name, eventType); ok && exceeds(gone.For, limits.Unregistered) {
			l.add(signal{
				rule: RuleTypeGone, consumer: c.Name, eventType: eventType, count: t.Count, since: gone.Since.UnixMicro(),
				says: fmt.Sprintf("%s of %s %s for %s, and no running release of it takes the type: for %s", upTo(t.Count, "delivery", "deliveries"),
					eventType, plural(t.Count, "waits", "wait"), c.Name, span(gone.For)),
			})
			continue
		}
		if v := left[eventType]; v.Count > 0 && exceeds(l.age(v.Since), limits.Unconsumed) {
			l.add(signal{
				rule: RuleVersion, consumer: c.Name, eventType: eventType, count: v.Count, since: v.Since,
				says: fmt.Sprintf("%s of %s %s for %s, and no running instance knows the schema version: the first since %s",
					upTo(v.Count, "delivery", "deliveries"), eventType,
					plural(v.Count, "waits", "wait"), c.Name, span(l.age(v.Since))),
			})
			continue
		}
		if u := uncounted[eventType]; u.Count > 0 && exceeds(l.age(u.Since), limits.Uncounted) {
			l.add(signal{
				rule: RuleCircuit, consumer: c.Name, eventType: eventType, count: u.Count, since: u.Since,
				says: fmt.Sprintf("%s of %s to %s %s for %s without an attempt that counts: what the consumer calls cannot be reached, or its "+
					"handler keeps returning bus.RetryAfter",
					upTo(u.Count, "delivery", "deliveries"), eventType, c.Name, plural(u.Count, "has failed", "have failed"), span(l.age(u.Since))),
			})
			continue
		}
		if age := l.age(t.Since); exceeds(age, limits.LagAge) {
			l.add(signal{
				rule: RuleLag, consumer: c.Name, eventType: eventType, count: t.Count, since: t.Since,
				says: fmt.Sprintf("the oldest of %s of %s has been waiting for %s for %s", upTo(t.Count, "delivery", "deliveries"), eventType, c.Name,
					span(age)),
			})
		}
	}
}

func plural(n int64, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

func are(n int64) string { return plural(n, "is", "are") }

// attempts judges the share of attempts that failed lately. Only if enough failed are the successes
// counted: among the newest deliveries, by primary key.
func (l *look) attempts(ctx context.Context) error {
	window := l.cfg.Limits.FailureWindow
	failed, err := l.ask().FailedAttempts(ctx, l.db, window, countCap)
	if err != nil {
		return err
	}
	enough := false
	for name, t := range failed {
		limits := l.cfg.limits(name, "")
		enough = enough || (limits.FailureRatio >= 0 && limits.FailureLeast >= 0 && t.Count >= limits.FailureLeast)
	}
	if !enough {
		return nil
	}
	succeeded, whole, err := l.successes(ctx, window)
	if err != nil {
		return err
	}
	if whole < window { // so much happens that the newest deliveries are from a shorter time
		if failed, err = l.ask().FailedAttempts(ctx, l.db, whole, countCap); err != nil {
			return err
		}
	}
	for name, t := range failed {
		limits := l.cfg.limits(name, "")
		ratio := float64(t.Count) / float64(t.Count+succeeded[name])
		if limits.FailureRatio >= 0 && limits.FailureLeast >= 0 && t.Count >= limits.FailureLeast && ratio >= limits.FailureRatio {
			l.add(signal{
				rule: RuleFailures, consumer: name, count: t.Count, since: t.Since,
				says: fmt.Sprintf("%.0f %% of the attempts of %s in the last %s failed (%d of %d)", 100*ratio, name, span(whole), t.Count,
					t.Count+succeeded[name]),
			})
		}
	}
	return nil
}

// successes counts those within the window, which may be shorter than asked for.
func (l *look) successes(ctx context.Context, window time.Duration) (byConsumer map[string]int64, whole time.Duration, err error) {
	newest, err := l.ask().NewestDeliveries(ctx, l.db, l.now-window.Microseconds(), countCap)
	byConsumer = make(map[string]int64, len(newest))
	total, first := int64(0), l.now
	for _, n := range newest {
		byConsumer[n.Consumer] = n.Succeeded
		total, first = total+n.Count, min(first, n.Oldest)
	}
	if whole = window; total == countCap {
		whole = min(max(l.age(first), time.Second), window)
	}
	return byConsumer, whole, err
}
