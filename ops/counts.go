package ops

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/store/view"
	"github.com/bluecone-go/bluecone/outbox"
)

// deadShown is how many groups of dead letters an overview shows.
const deadShown = 10

// overviews looks at the deployment as a whole.
type overviews struct {
	access     *access
	ring       ring
	stuckAfter time.Duration
}

// Overview is the deployment in one look. What it answers is shared: do not change it.
func (o *Ops) Overview(ctx context.Context) (Overview, error) { return o.overviews.overview(ctx) }

// Consumers lists every consumer that an instance has announced, and those that only the consume
// log knows and that deliveries wait for.
func (o *Ops) Consumers(ctx context.Context) ([]Consumer, error) { return o.overviews.consumers(ctx) }

func (v *overviews) overview(ctx context.Context) (Overview, error) {
	return share(ctx, v.access, "overview", nil, v.readOverview)
}

func (v *overviews) readOverview(ctx context.Context) (all Overview, err error) {
	if all.Consumers, err = v.consumers(ctx); err != nil {
		return all, err
	}
	if all.Events, all.Oldest, all.At, err = v.openEvents(ctx); err != nil {
		return all, err
	}
	queues, err := v.waiting(ctx)
	if err != nil {
		return all, err
	}
	all.Deliveries = sums(queues)
	groups, err := v.dead(ctx)
	if err != nil {
		return all, err
	}
	all.Dead = groups[:min(len(groups), deadShown)]
	if all.Instances, err = v.instances(ctx); err != nil {
		return all, err
	}
	if CallerOf(ctx).limited() {
		var none ring // rates are those of all tenants
		all.Series, _, _ = none.series()
	} else {
		all.Series, all.SavedRate, all.DoneRate = v.ring.series()
	}
	work, err := v.unattended(ctx)
	all.Health = health(all, work)
	return all, err
}

// unattended finds what waits although nobody works on it.
func (v *overviews) unattended(ctx context.Context) ([]view.Unattended, error) {
	queues, err := v.queued(ctx)
	if err != nil {
		return nil, err
	}
	work, err := view.FindUnattended(ctx, v.access.sql, view.UnattendedQuery{
		Queues: queues, Tenants: CallerOf(ctx).Tenants, Stuck: v.stuckAfter,
	})
	if err != nil {
		return nil, fmt.Errorf("ops: look for what nobody works on: %w", err)
	}
	return work, nil
}

// sums adds the queues of all consumers up, by state.
func sums(queues map[string]map[consumelog.Status]queue) map[consumelog.Status]Count {
	all := map[consumelog.Status]Count{consumelog.Pending: {}, consumelog.Failed: {}, consumelog.Processing: {}, consumelog.Dead: {}}
	for _, counts := range queues {
		for s, c := range counts {
			n := all[s].Count + c.n.Count
			all[s] = Count{Count: min(n, CountCap), More: all[s].More || c.n.More || n > CountCap}
		}
	}
	return all
}

var openStatuses = []outbox.Status{ //nolint:gochecknoglobals // a constant
	outbox.StatusNew, outbox.StatusScheduled, outbox.StatusDispatching, outbox.StatusFailed, outbox.StatusDead,
}

// openEvents counts the events that are not SENT, and measures how long the oldest is due.
func (v *overviews) openEvents(ctx context.Context) (counts map[outbox.Status]Count, oldest time.Duration, now time.Time, err error) {
	counts = make(map[outbox.Status]Count)
	for _, s := range openStatuses {
		n, err := view.CountOpen(ctx, v.access.sql, string(s), CallerOf(ctx).Tenants, CountCap+1)
		if err != nil {
			return nil, 0, now, fmt.Errorf("ops: count events: %w", err)
		}
		now, counts[s] = n.At, counted(n.Count, n.Looked)
		if !n.First.IsZero() && s != outbox.StatusDead {
			oldest = max(oldest, n.At.Sub(n.First))
		}
	}
	return counts, oldest, now, nil
}

func capped(n int64) Count { return counted(n, n) }

// counted is how many were counted, of so many that were looked at.
func counted(n, looked int64) Count { return Count{Count: min(n, CountCap), More: looked > CountCap} }

// queue is what one consumer has in one state.
type queue struct {
	n      Count
	oldest time.Duration
}

// waiting counts the deliveries that are not done, by the name in the log and by state.
func (v *overviews) waiting(ctx context.Context) (map[string]map[consumelog.Status]queue, error) {
	return share(ctx, v.access, "waiting", nil, v.readWaiting)
}

func (v *overviews) readWaiting(ctx context.Context) (map[string]map[consumelog.Status]queue, error) {
	queues, err := v.queued(ctx)
	if err != nil {
		return nil, err
	}
	queues = store.In(queues, string(consumelog.Pending), string(consumelog.Processing), string(consumelog.Failed), string(consumelog.Dead))
	counts, err := view.CountQueues(ctx, v.access.sql, queues, CallerOf(ctx).Tenants, CountCap+1)
	if err != nil {
		return nil, fmt.Errorf("ops: count the deliveries that wait: %w", err)
	}
	out := make(map[string]map[consumelog.Status]queue)
	for _, c := range counts {
		if out[c.Consumer] == nil {
			out[c.Consumer] = make(map[consumelog.Status]queue)
		}
		out[c.Consumer][consumelog.Status(c.Status)] = queue{n: counted(c.Count, c.Looked), oldest: c.Oldest}
	}
	return out, nil
}

// queued lists the queues of consumers that are not empty, whoever asks.
func (v *overviews) queued(ctx context.Context) ([]store.Queue, error) {
	return share(ctx, v.access, "queued", nil, func(ctx context.Context) ([]store.Queue, error) {
		queues, err := view.Queues(ctx, v.access.sql)
		if err != nil {
			return nil, fmt.Errorf("ops: look for what waits for consumers: %w", err)
		}
		return queues, nil
	})
}

func (v *overviews) consumers(ctx context.Context) ([]Consumer, error) {
	return share(ctx, v.access, "consumers", nil, v.readConsumers)
}

func (v *overviews) readConsumers(ctx context.Context) ([]Consumer, error) {
	k, err := v.access.registry(ctx)
	if err != nil {
		return nil, err
	}
	shared, err := v.waiting(ctx)
	if err != nil {
		return nil, err
	}
	queues := maps.Clone(shared)
	out := make([]Consumer, 0, len(k.consumers))
	for _, r := range k.consumers {
		c := newConsumer(k, r)
		for _, name := range []string{r.name, consumelog.ReplayName(r.name)} {
			addQueues(&c, queues[name])
			delete(queues, name)
		}
		out = append(out, c)
	}
	for _, name := range slices.Sorted(maps.Keys(queues)) {
		c := Consumer{Name: name, Types: []string{}, State: Unregistered}
		if addQueues(&c, queues[name]); c.Waiting.Count+c.Failed.Count+c.Dead.Count > 0 {
			out = append(out, c)
		}
	}
	if CallerOf(ctx).limited() { // the latest is anybody's
		return out, nil
	}
	return out, v.latest(ctx, out)
}

// newConsumer is a consumer of the registry, without its deliveries.
func newConsumer(k known, r registration) Consumer {
	c := Consumer{
		Name: r.name, DisplayName: r.displayName, Types: append([]string{}, r.types...), State: k.state(r), SeenAt: r.seenAt,
		Replayable: r.replayable,
	}
	if r.paused {
		c.PausedBy, c.PauseReason = r.pausedBy, r.pauseReason
		if !forever(k.at, r.pausedUntil) {
			c.PausedUntil = r.pausedUntil
		}
	}
	return c
}

// addQueues adds what waits for a consumer under one of its names.
func addQueues(c *Consumer, q map[consumelog.Status]queue) {
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
func (v *overviews) latest(ctx context.Context, consumers []Consumer) error {
	byName := make(map[string]*Consumer, len(consumers))
	for i := range consumers {
		byName[consumers[i].Name] = &consumers[i]
	}
	successes, err := view.LatestSuccesses(ctx, v.access.sql, latestLook)
	if err != nil {
		return fmt.Errorf("ops: look for the last successes: %w", err)
	}
	for name, at := range successes {
		if c := byName[name]; c != nil {
			c.LastSuccess = at
		}
	}
	failures, err := view.LatestErrors(ctx, v.access.sql, latestLook, listText)
	if err != nil {
		return fmt.Errorf("ops: look for the last errors: %w", err)
	}
	for _, a := range failures {
		if c := byName[a.Consumer]; c != nil {
			c.LastError, c.LastErrorAt = a.Error, a.At
		}
	}
	return nil
}
