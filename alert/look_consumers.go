package alert

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/store"
)

// consumer is one that some instance has registered, or that deliveries name.
type consumer struct {
	name     string
	paused   bool
	pausedBy string
	seen     int64 // 0 if nobody has registered it
}

// absentAfter is how long a consumer may be absent for which nothing waits yet.
const absentAfter = 24 * time.Hour

// absent reports whether no instance has had the consumer for too long.
func (l *look) absent(c consumer) bool {
	return exceeds(l.age(c.seen), l.cfg.limits(c.name, "").Unregistered)
}

// readConsumers reads the registry and the names that deliveries carry.
func (l *look) readConsumers(ctx context.Context) error {
	err := l.each(ctx, func(scan func(...any) error) error {
		var c consumer
		err := scan(&c.name, &c.paused, &c.pausedBy, &c.seen)
		l.consumers = append(l.consumers, c)
		return err
	}, "SELECT name, CASE WHEN paused_until > "+l.d.Now+" THEN 1 ELSE 0 END, COALESCE(paused_by, ''), "+
		l.d.Micros("seen_at")+" FROM bc_consumer ORDER BY name")
	if err != nil {
		return err
	}
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
		known[c.name] = true
	}
	for _, q := range l.queued {
		if !known[q.Consumer] {
			known[q.Consumer] = true
			l.consumers = append(l.consumers, consumer{name: q.Consumer})
		}
	}
	return nil
}

// paused judges the consumers that an operator has stopped.
func (l *look) paused(ctx context.Context) error {
	var names []string
	for _, c := range l.consumers {
		if c.paused {
			names = append(names, c.name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	since := make(map[string]int64)
	err := l.each(ctx, func(scan func(...any) error) error {
		var name string
		var at int64
		err := scan(&name, &at)
		since[name] = at
		return err
	}, "SELECT target, MAX("+l.d.Micros("created_at")+") FROM bc_audit_log WHERE target IN (?) AND action = 'pause' GROUP BY target",
		bun.List(names))
	if err != nil {
		return err
	}
	for _, c := range l.consumers {
		at := since[c.name]
		if !c.paused || !exceeds(l.age(at), l.cfg.limits(c.name, "").Paused) {
			continue
		}
		says := "the consumer " + c.name + " is paused, since a time that nobody has written down"
		if at > 0 {
			says = fmt.Sprintf("the consumer %s has been paused for %s by %s", c.name, span(l.age(at)), c.pausedBy)
		}
		l.add(signal{rule: RulePaused, consumer: c.name, count: 1, since: at, says: says})
	}
	return nil
}

// queue is what waits for a consumer, of one event type and state.
type queue struct {
	consumer, eventType, status string
	all                         tally
	uncounted                   tally // whose attempts do not count
	left                        tally // that wait for an instance that knows their schema version
	changed                     int64 // when the first of them became what it is
}

// deliveries judges what waits for the consumers, and what is DEAD.
func (l *look) deliveries(ctx context.Context) error {
	queues, err := l.queues(ctx)
	if err != nil {
		return err
	}
	for _, c := range l.consumers {
		l.judge(c, queues[c.name])
	}
	return nil
}

// queues measures the queues that are not empty, by consumer.
func (l *look) queues(ctx context.Context) (map[string][]queue, error) {
	uncounted, left := "CASE WHEN status = 'FAILED' AND attempts = 0 THEN ", "CASE WHEN status = 'PENDING' AND due = "+l.d.Never+" THEN "
	part := "SELECT consumer_name, event_type, status, COUNT(*), MIN(created), MIN(changed), COUNT(" + uncounted + "1 END), COALESCE(MIN(" +
		uncounted + "created END), 0), COUNT(" + left + "1 END), COALESCE(MIN(" + left + "changed END), 0) FROM " +
		"(SELECT consumer_name, event_type, status, attempts, next_retry_at AS due, " + l.d.Micros("created_at") + " AS created, " +
		l.d.Micros("updated_at") + " AS changed FROM " + store.OfQueue(l.d) + " LIMIT ?) AS t GROUP BY consumer_name, event_type, status"
	found := make(map[string][]queue)
	for query, args := range store.Union(part, l.queued, store.MostParts,
		func(q store.Queue) []any { return []any{q.Consumer, q.Status, countCap + 1} }) {
		err := l.each(ctx, func(scan func(...any) error) error {
			var q queue
			err := scan(&q.consumer, &q.eventType, &q.status, &q.all.count, &q.all.since, &q.changed, &q.uncounted.count, &q.uncounted.since,
				&q.left.count, &q.left.since)
			found[q.consumer] = append(found[q.consumer], q)
			return err
		}, query, args...)
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

// judge finds what is wrong with the queues of a consumer.
func (l *look) judge(c consumer, queues []queue) {
	waiting, uncounted, left := make(map[string]tally), make(map[string]tally), make(map[string]tally)
	var all tally
	for _, q := range queues {
		if q.status == "DEAD" {
			if limit := l.cfg.limits(c.name, q.eventType).Dead; limit > 0 && q.all.count >= limit {
				l.add(signal{
					rule: RuleDead, consumer: c.name, eventType: q.eventType, count: q.all.count, since: q.changed,
					says: upTo(q.all.count, "delivery", "deliveries") + " of " + q.eventType + " to " + c.name + " " + are(q.all.count) + " DEAD and " +
						plural(q.all.count, "waits", "wait") + " for an operator",
				})
			}
			continue
		}
		all = all.plus(q.all)
		waiting[q.eventType] = waiting[q.eventType].plus(q.all)
		left[q.eventType] = left[q.eventType].plus(q.left)
		if q.uncounted.count > 0 {
			uncounted[q.eventType] = uncounted[q.eventType].plus(q.uncounted)
		}
	}
	switch {
	case c.paused: // that is why they wait
	case l.absent(c) && all.count > 0:
		since, seen := c.seen, "for "+span(l.age(c.seen))
		if c.seen == 0 {
			since, seen = all.since, "for as long as is known"
		}
		l.add(signal{
			rule: RuleUnregistered, consumer: c.name, count: all.count, since: since,
			says: upTo(all.count, "delivery", "deliveries") + " " + plural(all.count, "waits", "wait") + " for the consumer " + c.name +
				", which no instance has had " + seen,
		})
	case c.seen != 0 && l.age(c.seen) > absentAfter && !strings.HasSuffix(c.name, "@replay"):
		l.add(signal{
			rule: RuleUnregistered, consumer: c.name, count: 1, since: c.seen,
			says: "no instance has had the consumer " + c.name + " for " + span(l.age(c.seen)) + ": events wait for it",
		})
	default:
		l.late(c, waiting, uncounted, left)
	}
}

// late judges deliveries that wait for a consumer that runs.
func (l *look) late(c consumer, waiting, uncounted, left map[string]tally) {
	for eventType, t := range waiting {
		limits := l.cfg.limits(c.name, eventType)
		if v := left[eventType]; v.count > 0 && exceeds(l.age(v.since), limits.Unconsumed) {
			l.add(signal{
				rule: RuleVersion, consumer: c.name, eventType: eventType, count: v.count, since: v.since,
				says: fmt.Sprintf("%s of %s %s for %s, and no running instance knows the schema version: the first since %s",
					upTo(v.count, "delivery", "deliveries"), eventType,
					plural(v.count, "waits", "wait"), c.name, span(l.age(v.since))),
			})
			continue
		}
		if u := uncounted[eventType]; u.count > 0 && exceeds(l.age(u.since), limits.Uncounted) {
			l.add(signal{
				rule: RuleCircuit, consumer: c.name, eventType: eventType, count: u.count, since: u.since,
				says: fmt.Sprintf("%s of %s to %s %s for %s without an attempt that counts: what the consumer calls cannot be reached, or asks for "+
					"patience",
					upTo(u.count, "delivery", "deliveries"), eventType, c.name, plural(u.count, "has failed", "have failed"), span(l.age(u.since))),
			})
			continue
		}
		if age := l.age(t.since); exceeds(age, limits.LagAge) {
			l.add(signal{
				rule: RuleLag, consumer: c.name, eventType: eventType, count: t.count, since: t.since,
				says: fmt.Sprintf("the oldest of %s of %s has been waiting for %s for %s", upTo(t.count, "delivery", "deliveries"), eventType, c.name,
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
	failed, err := l.failures(ctx, window)
	if err != nil {
		return err
	}
	enough := false
	for name, t := range failed {
		limits := l.cfg.limits(name, "")
		enough = enough || (limits.FailureRatio >= 0 && limits.FailureLeast >= 0 && t.count >= limits.FailureLeast)
	}
	if !enough {
		return nil
	}
	succeeded, whole, err := l.successes(ctx, window)
	if err != nil {
		return err
	}
	if whole < window { // so much happens that the newest deliveries are from a shorter time
		if failed, err = l.failures(ctx, whole); err != nil {
			return err
		}
	}
	for name, t := range failed {
		limits := l.cfg.limits(name, "")
		ratio := float64(t.count) / float64(t.count+succeeded[name])
		if limits.FailureRatio >= 0 && limits.FailureLeast >= 0 && t.count >= limits.FailureLeast && ratio >= limits.FailureRatio {
			l.add(signal{
				rule: RuleFailures, consumer: name, count: t.count, since: t.since,
				says: fmt.Sprintf("%.0f %% of the attempts of %s in the last %s failed (%d of %d)", 100*ratio, name, span(whole), t.count,
					t.count+succeeded[name]),
			})
		}
	}
	return nil
}

func (l *look) failures(ctx context.Context, window time.Duration) (byConsumer map[string]tally, err error) {
	byConsumer = make(map[string]tally)
	err = l.each(ctx, func(scan func(...any) error) error {
		var name string
		var t tally
		err := scan(&name, &t.count, &t.since)
		byConsumer[name] = t
		return err
	}, "SELECT consumer_name, COUNT(*), MIN(created) FROM (SELECT consumer_name, "+l.d.Micros("created_at")+
		" AS created FROM bc_delivery_attempt WHERE created_at > "+l.d.After+" ORDER BY created_at DESC LIMIT ?) AS t GROUP BY consumer_name",
		-dialect.Micro(window), countCap)
	return byConsumer, err
}

// successes counts those within the window, which may be shorter than asked for.
func (l *look) successes(ctx context.Context, window time.Duration) (byConsumer map[string]int64, whole time.Duration, err error) {
	byConsumer = make(map[string]int64)
	from := l.now - window.Microseconds()
	var total, first int64
	first = l.now
	err = l.each(ctx, func(scan func(...any) error) error {
		var name string
		var all, done, oldest int64
		err := scan(&name, &all, &done, &oldest)
		byConsumer[name] = done
		total, first = total+all, min(first, oldest)
		return err
	}, "SELECT consumer_name, COUNT(*), COUNT(CASE WHEN status = 'SUCCESS' AND consumed > ? THEN 1 END), MIN(created) FROM "+
		"(SELECT consumer_name, status, "+l.d.Micros("consumed_at")+" AS consumed, "+l.d.Micros("created_at")+" AS created "+
		"FROM bc_event_consume_log ORDER BY id DESC LIMIT ?) AS t GROUP BY consumer_name",
		from, countCap)
	if whole = window; total == countCap {
		whole = min(max(l.age(first), time.Second), window)
	}
	return byConsumer, whole, err
}
