package ops

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/outbox"
)

// deadShown is how many groups of dead letters an overview shows.
const deadShown = 10

// Overview is the deployment in one look. What it answers is shared: do not change it.
func (o *Ops) Overview(ctx context.Context) (Overview, error) {
	return share(ctx, o.access, "overview", nil, o.overview)
}

func (o *Ops) overview(ctx context.Context) (v Overview, err error) {
	if v.Consumers, err = o.Consumers(ctx); err != nil {
		return v, err
	}
	if v.Events, v.Oldest, v.At, err = o.openEvents(ctx); err != nil {
		return v, err
	}
	v.Deliveries = map[consumelog.Status]Count{consumelog.Pending: {}, consumelog.Failed: {}, consumelog.Processing: {}, consumelog.Dead: {}}
	queues, err := o.waiting(ctx)
	if err != nil {
		return v, err
	}
	for _, counts := range queues {
		for s, c := range counts {
			sum := v.Deliveries[s]
			v.Deliveries[s] = Count{Count: min(sum.Count+c.n.Count, CountCap), More: sum.More || c.n.More || sum.Count+c.n.Count > CountCap}
		}
	}
	groups, err := o.Dead(ctx)
	if err != nil {
		return v, err
	}
	v.Dead = groups[:min(len(groups), deadShown)]
	if v.Instances, err = o.Instances(ctx); err != nil {
		return v, err
	}
	if CallerOf(ctx).limited() {
		var none ring // rates are those of all tenants
		v.Series, _, _ = none.series()
	} else {
		v.Series, v.SavedRate, v.DoneRate = o.ring.series()
	}
	v.Health = health(v)
	return v, nil
}

var openStatuses = []outbox.Status{outbox.StatusNew, outbox.StatusScheduled, outbox.StatusDispatching, outbox.StatusFailed, outbox.StatusDead} //nolint:gochecknoglobals // a constant

// openEvents counts the events that are not SENT, and measures how long the oldest is due.
func (o *Ops) openEvents(ctx context.Context) (counts map[outbox.Status]Count, oldest time.Duration, now time.Time, err error) {
	counts = make(map[outbox.Status]Count)
	var at int64
	for _, s := range openStatuses {
		var n Count
		var first int64
		if n, at, first, err = o.openIn(ctx, s); err != nil {
			return nil, 0, now, fmt.Errorf("ops: count events: %w", err)
		}
		counts[s] = n
		if first > 0 && s != outbox.StatusDead {
			oldest = max(oldest, time.Duration(at-first)*time.Microsecond)
		}
	}
	return counts, oldest, instant(at), nil
}

// openIn counts the events in a state, and tells when the one was made that has been due for longest.
func (o *Ops) openIn(ctx context.Context, s outbox.Status) (n Count, at, first int64, err error) {
	due := ""
	if s == outbox.StatusScheduled {
		due = " AND next_retry_at <= " + o.d.Now
	}
	// The first in the index is the one that has been due for longest.
	firstOf, args := "SELECT "+o.d.Micros("e.created_at")+" FROM "+o.d.Due(eventTable)+" WHERE e.status = ? AND e.status <> 'SENT'"+due+" ORDER BY e.next_retry_at, e.id LIMIT 1", []any{string(s)}
	caller := CallerOf(ctx)
	if !caller.limited() {
		var count int64
		err = o.row(ctx, []any{&at, &count, &first}, "SELECT "+o.d.Micros(o.d.Now)+", (SELECT COUNT(*) FROM (SELECT id FROM "+eventTable+" WHERE status = ? AND status <> 'SENT' LIMIT ?) x), COALESCE(("+firstOf+"), 0)",
			append([]any{string(s), CountCap + 1}, args...)...)
		return capped(count), at, first, err
	}
	var all int64 // that were looked at
	owns, arg := caller.owns("x")
	err = o.row(ctx, []any{&at, &all, &n.Count, &first}, "SELECT "+o.d.Micros(o.d.Now)+", COUNT(*), COALESCE(SUM(CASE WHEN "+owns+" THEN 1 ELSE 0 END), 0), COALESCE(MIN(CASE WHEN "+owns+" THEN "+o.d.Micros("x.created_at")+" END), 0) FROM "+
		"(SELECT tenant_id, created_at FROM "+eventTable+" WHERE status = ? AND status <> 'SENT'"+due+" LIMIT ?) x", arg, arg, string(s), CountCap+1)
	n.More = all > CountCap
	return n, at, first, err
}

func capped(n int64) Count { return Count{Count: min(n, CountCap), More: n > CountCap} }

// queue is what one consumer has in one state.
type queue struct {
	n      Count
	oldest time.Duration
}

// waiting counts the deliveries that are not done, by the name in the log and by state.
func (o *Ops) waiting(ctx context.Context) (map[string]map[consumelog.Status]queue, error) {
	return share(ctx, o.access, "waiting", nil, o.readWaiting)
}

func (o *Ops) readWaiting(ctx context.Context) (map[string]map[consumelog.Status]queue, error) {
	queues, err := o.queued(ctx)
	if err != nil {
		return nil, err
	}
	queues = store.In(queues, string(consumelog.Pending), string(consumelog.Processing), string(consumelog.Failed), string(consumelog.Dead))
	out := make(map[string]map[consumelog.Status]queue)
	part, args := o.countOf(ctx)
	for query, args := range store.Union(part, queues, store.MostParts, args) {
		err := o.rows(ctx, func(rows *sql.Rows) error {
			var name string
			var status consumelog.Status
			var all, n, oldest int64
			if err := rows.Scan(&name, &status, &all, &n, &oldest); err != nil {
				return err
			}
			if out[name] == nil {
				out[name] = make(map[consumelog.Status]queue)
			}
			out[name][status] = queue{n: Count{Count: min(n, CountCap), More: all > CountCap}, oldest: time.Duration(oldest) * time.Microsecond}
			return nil
		}, query, args...)
		if err != nil {
			return nil, fmt.Errorf("ops: count the deliveries that wait: %w", err)
		}
	}
	return out, nil
}

// queued lists the queues of consumers that are not empty, whoever asks.
func (o *Ops) queued(ctx context.Context) (queues []store.Queue, err error) {
	return share(ctx, o.access, "queued", nil, func(ctx context.Context) (queues []store.Queue, err error) {
		err = o.rows(ctx, func(rows *sql.Rows) error {
			q, err := store.ScanQueue(rows)
			queues = append(queues, q)
			return err
		}, store.QueuedQuery(o.d))
		if err != nil {
			return nil, fmt.Errorf("ops: look for what waits for consumers: %w", err)
		}
		return queues, nil
	})
}

// countOf is a SELECT for one queue, and its arguments: how many deliveries were looked at, how many of them the caller sees,
// and the age of the oldest.
func (o *Ops) countOf(ctx context.Context) (part string, args func(store.Queue) []any) {
	caller := CallerOf(ctx)
	if !caller.limited() {
		// The oldest is the one with the smallest id: the rows themselves, which lie far apart, are not read.
		return "SELECT ?, ?, y.n, y.n, COALESCE((SELECT " + o.d.Micros(o.d.Now) + " - " + o.d.Micros("l.created_at") + " FROM " + logTable + " l WHERE l.id = y.first), 0) FROM (SELECT COUNT(*) AS n, MIN(x.id) AS first FROM (SELECT id FROM " +
				store.OfQueue(o.d) + " LIMIT ?) x) y", func(q store.Queue) []any {
				return []any{q.Consumer, q.Status, q.Consumer, q.Status, CountCap + 1}
			}
	}
	owns, arg := caller.owns("x")
	return "SELECT ?, ?, COUNT(*), COALESCE(SUM(CASE WHEN " + owns + " THEN 1 ELSE 0 END), 0), COALESCE(MAX(CASE WHEN " + owns + " THEN " + o.d.Micros(o.d.Now) + " - " + o.d.Micros("x.created_at") + " END), 0) FROM " +
			"(SELECT tenant_id, created_at FROM " + store.OfQueue(o.d) + " LIMIT ?) x", func(q store.Queue) []any {
			return []any{q.Consumer, q.Status, arg, arg, q.Consumer, q.Status, CountCap + 1}
		}
}

// Consumers lists every consumer that an instance has announced, and those that only the consume
// log knows and that deliveries wait for.
func (o *Ops) Consumers(ctx context.Context) ([]Consumer, error) {
	return share(ctx, o.access, "consumers", nil, o.consumers)
}

func (o *Ops) consumers(ctx context.Context) ([]Consumer, error) {
	k, err := o.registry(ctx)
	if err != nil {
		return nil, err
	}
	shared, err := o.waiting(ctx)
	if err != nil {
		return nil, err
	}
	queues := maps.Clone(shared)
	out := make([]Consumer, 0, len(k.consumers))
	for _, r := range k.consumers {
		c := Consumer{
			Name: r.name, DisplayName: r.displayName, Types: append([]string{}, r.types...), State: k.state(r), SeenAt: r.seenAt, Replayable: r.replayable,
			PausedBy: r.pausedBy, PauseReason: r.pauseReason,
		}
		if r.paused && !forever(k.at, r.pausedUntil) {
			c.PausedUntil = r.pausedUntil
		}
		if !r.paused {
			c.PausedBy, c.PauseReason = "", ""
		}
		for _, name := range []string{r.name, consumelog.ReplayName(r.name)} {
			c.add(queues[name])
			delete(queues, name)
		}
		out = append(out, c)
	}
	for _, name := range slices.Sorted(maps.Keys(queues)) {
		c := Consumer{Name: name, Types: []string{}, State: Unregistered}
		if c.add(queues[name]); c.Waiting.Count+c.Failed.Count+c.Dead.Count > 0 {
			out = append(out, c)
		}
	}
	if CallerOf(ctx).limited() { // the latest is anybody's
		return out, nil
	}
	return out, o.latest(ctx, out)
}

func (c *Consumer) add(q map[consumelog.Status]queue) {
	for s, v := range q {
		sum := &c.Waiting
		switch s {
		case consumelog.Failed:
			sum = &c.Failed
		case consumelog.Dead:
			sum = &c.Dead
		default:
		}
		sum.Count += v.n.Count
		sum.More = sum.More || v.n.More
		if s != consumelog.Dead {
			c.Oldest = max(c.Oldest, v.oldest)
		}
	}
}

// latestLook is how many rows are looked at for the latest successes and errors of consumers.
const latestLook = 2000

// latest finds the last success and error of each consumer among the newest rows.
func (o *Ops) latest(ctx context.Context, consumers []Consumer) error {
	byName := make(map[string]*Consumer, len(consumers))
	for i := range consumers {
		byName[consumers[i].Name] = &consumers[i]
	}
	err := o.rows(ctx, func(rows *sql.Rows) error {
		var name string
		var at int64
		err := rows.Scan(&name, &at)
		if c := byName[name]; c != nil {
			c.LastSuccess = instant(at)
		}
		return err
	}, fmt.Sprintf("SELECT x.consumer_name, COALESCE(MAX(%s), 0) FROM (SELECT consumer_name, status, consumed_at FROM %s ORDER BY id DESC LIMIT %d) x WHERE x.status = 'SUCCESS' GROUP BY x.consumer_name",
		o.d.Micros("x.consumed_at"), logTable, latestLook))
	if err != nil {
		return fmt.Errorf("ops: look for the last successes: %w", err)
	}
	err = o.rows(ctx, func(rows *sql.Rows) error {
		var name, said string
		var at int64
		err := rows.Scan(&name, &said, &at)
		if c := byName[name]; c != nil {
			c.LastError, c.LastErrorAt = said, instant(at)
		}
		return err
	}, fmt.Sprintf("SELECT a.consumer_name, COALESCE(SUBSTR(a.error_message, 1, %d), ''), %s FROM (SELECT MAX(x.id) AS id FROM (SELECT id, consumer_name FROM bc_delivery_attempt ORDER BY id DESC LIMIT %d) x GROUP BY x.consumer_name) y JOIN bc_delivery_attempt a ON a.id = y.id",
		listText, o.d.Micros("a.created_at"), latestLook))
	if err != nil {
		return fmt.Errorf("ops: look for the last errors: %w", err)
	}
	return nil
}
