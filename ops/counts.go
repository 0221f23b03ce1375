package ops

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/bluecone-go/bluecone/consumelog"
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
	out := make(map[string]map[consumelog.Status]queue)
	names, err := o.consumerNames(ctx)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		out[name] = make(map[consumelog.Status]queue)
		for _, s := range []consumelog.Status{consumelog.Pending, consumelog.Processing, consumelog.Failed, consumelog.Dead} {
			if out[name][s], err = o.queueOf(ctx, name, s); err != nil {
				return nil, fmt.Errorf("ops: count the deliveries of %s: %w", name, err)
			}
		}
	}
	return out, nil
}

// queueOf counts the deliveries of one consumer in one state.
func (o *Ops) queueOf(ctx context.Context, name string, s consumelog.Status) (q queue, err error) {
	var n, oldest int64
	caller := CallerOf(ctx)
	if !caller.limited() {
		// The oldest is the one with the smallest id: the rows themselves, which lie far apart, are not read.
		err = o.row(ctx, []any{&n, &oldest}, "SELECT y.n, COALESCE((SELECT "+o.d.Micros(o.d.Now)+" - "+o.d.Micros("l.created_at")+" FROM "+logTable+" l WHERE l.id = y.first), 0) FROM (SELECT COUNT(*) AS n, MIN(x.id) AS first FROM (SELECT id FROM "+
			o.d.DueDeliveries(logTable)+" WHERE consumer_name = ? AND status = ? AND status <> 'SUCCESS' LIMIT ?) x) y", name, string(s), CountCap+1)
		return queue{n: capped(n), oldest: time.Duration(oldest) * time.Microsecond}, err
	}
	var all int64 // that were looked at
	owns, arg := caller.owns("x")
	err = o.row(ctx, []any{&all, &n, &oldest}, "SELECT COUNT(*), COALESCE(SUM(CASE WHEN "+owns+" THEN 1 ELSE 0 END), 0), COALESCE(MAX(CASE WHEN "+owns+" THEN "+o.d.Micros(o.d.Now)+" - "+o.d.Micros("x.created_at")+" END), 0) FROM "+
		"(SELECT tenant_id, created_at FROM "+o.d.DueDeliveries(logTable)+" WHERE consumer_name = ? AND status = ? AND status <> 'SUCCESS' LIMIT ?) x", arg, arg, name, string(s), CountCap+1)
	return queue{n: Count{Count: n, More: all > CountCap}, oldest: time.Duration(oldest) * time.Microsecond}, err
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
	for i := range out {
		if err := o.latest(ctx, &out[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
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

// latestLook is how many rows are looked at for a consumer's latest success and error.
const latestLook = 2000

// latest finds the consumer's last success and error among the newest rows.
func (o *Ops) latest(ctx context.Context, c *Consumer) error {
	var at int64
	err := o.row(ctx, []any{&at}, fmt.Sprintf("SELECT COALESCE(MAX(%s), 0) FROM (SELECT consumer_name, status, consumed_at FROM %s ORDER BY id DESC LIMIT %d) x WHERE x.consumer_name = ? AND x.status = 'SUCCESS'",
		o.d.Micros("x.consumed_at"), logTable, latestLook), c.Name)
	if err != nil {
		return fmt.Errorf("ops: look for the last success of %s: %w", c.Name, err)
	}
	c.LastSuccess = instant(at)
	err = o.rows(ctx, func(rows *sql.Rows) error {
		var at int64
		err := rows.Scan(&c.LastError, &at)
		c.LastErrorAt = instant(at)
		return err
	}, fmt.Sprintf("SELECT COALESCE(SUBSTR(x.error_message, 1, %d), ''), %s FROM (SELECT id, consumer_name, error_message, created_at FROM bc_delivery_attempt ORDER BY id DESC LIMIT %d) x WHERE x.consumer_name = ? ORDER BY x.id DESC LIMIT 1",
		listText, o.d.Micros("x.created_at"), latestLook), c.Name)
	if err != nil {
		return fmt.Errorf("ops: look for the last error of %s: %w", c.Name, err)
	}
	return nil
}
