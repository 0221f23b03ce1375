package delivery

import (
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/engine/budget"
	"github.com/bluecone-go/bluecone/internal/engine/claim"
	"github.com/bluecone-go/bluecone/internal/engine/health"
	"github.com/bluecone-go/bluecone/internal/engine/registry"
	"github.com/bluecone-go/bluecone/internal/engine/settle"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/store"
)

// Config is what the lanes are told, and the rooms that they tell of what happens.
type Config struct {
	// Dialect is that of the database of the consumers.
	Dialect dialect.Dialect
	// Instance is the owner name of every lease.
	Instance string
	// Lease is how long a retried delivery is leased. Renewed at a third.
	Lease time.Duration
	// MaxBytes is how many bytes of payloads the lanes have loaded for deliveries from the consume log.
	MaxBytes int
	// Budget says how many transactions may be open.
	Budget *budget.Transactions
	// Roster says which consumers are paused. The lanes bring it up to date before they claim deliveries.
	Roster *registry.Roster
	// Outage is told of errors that say that the database is away: it logs that once, and the lanes do not log each consequence.
	Outage *health.Outage
	// RollUps bring the events of retried deliveries up to date when these have ended.
	RollUps *settle.RollUps
}

// Lanes run the deliveries of one bus: one lane per consumer, side by side.
type Lanes struct {
	// Signals are for the loop of the publisher.
	Signals *Signals

	regs   *handler.Registrations
	cfg    Config
	lanes  map[string]*lane // by the consumers' keys
	work   context.Context  //nolint:containedctx // lives as long as the lanes: ends when the drain time is over
	stop   context.CancelCauseFunc
	claims chan struct{} // one token per claim from the consume log
	room   *payloadRoom  // of deliveries from the consume log
	putOff putOff
	wg     sync.WaitGroup
	woken  atomic.Int64 // how often a lane was told to claim from the consume log

	suspects sync.RWMutex // see takeSuspect

	versioned, asked []string // see Left; of the publisher's loop
}

var (
	errDrained   = errors.New("the drain time is over")
	errLeaseGone = errors.New("the event's lease, or the delivery's, passed to another instance")
)

// Open starts the lanes of the consumers. From now on none can be registered. Close them with [Lanes.Drain].
func Open(regs *handler.Registrations, cfg Config) *Lanes {
	regs.Close()
	l := &Lanes{
		regs: regs, cfg: cfg, lanes: make(map[string]*lane), room: newPayloadRoom(cfg.MaxBytes),
		claims: make(chan struct{}, mostClaims), Signals: newSignals(),
	}
	l.work, l.stop = context.WithCancelCause(context.Background())
	for _, c := range regs.Consumers {
		l.lanes[c.Key] = newLane(l, c, cfg.Budget.Share(c.Key))
		regs.Metrics.ZeroConsumer(l.work, c.Name, c.EventTypes())
		if c.Config.Replayable {
			r := replayer(c)
			l.lanes[r.Key] = newLane(l, r, 1)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(l.lanes)) {
		if l.lanes[key].c.IsVersioned() {
			l.versioned = append(l.versioned, key)
		}
	}
	return l
}

// mostClaims is how many lanes claim from the consume log at a time: thousands would keep the publisher from the
// connections that it renews leases with.
const mostClaims = 8

// replayer is the consumer that runs the replays of c: under a key of its own in the consume log,
// with c's handlers, and slowly.
func replayer(c *handler.Consumer) *handler.Consumer {
	cfg := c.Config
	cfg.Concurrency, cfg.Batch, cfg.Rate = 1, min(cfg.Batch, replayBatch), cfg.Rate/10
	return c.ReplaysAs(store.ReplayName(c.Name), store.ReplayName(c.Key), cfg)
}

// replayBatch is the most replays in one transaction: they are in no hurry.
const replayBatch = 10

// Room tells how many more events may be offered now, and how many when the lanes are empty: as
// many as every lane takes that gets its deliveries directly.
//
// A lane that has nothing to do must not wait for one that is full and slow. So in that case the slow
// one spills: until it has caught up, its deliveries go to the consume log, and it claims them
// from there.
func (l *Lanes) Room() (now, atMost int) {
	var idle idleLanes
	starved := false
	for _, ln := range l.lanes {
		if ln.c.Replays != nil {
			continue
		}
		each, isIdle, isEmpty := ln.needsWork()
		if isIdle {
			idle.add(each)
		}
		starved = starved || isEmpty
	}
	now, atMost = math.MaxInt, math.MaxInt
	for _, ln := range l.lanes {
		if ln.c.Replays != nil {
			continue // it gets nothing directly
		}
		free, window := ln.room(idle, starved)
		now, atMost = min(now, free), min(atMost, window)
	}
	return now, atMost
}

// idleLanes are those that have nothing to do.
type idleLanes struct {
	isAny    bool
	quickest time.Duration // what the quickest of them takes for an event
}

func (d *idleLanes) add(each time.Duration) {
	if !d.isAny || each < d.quickest {
		d.isAny, d.quickest = true, each
	}
}

// RoomFor tells how many more events of a kind that is not NEW may be offered now, and how many when the lanes have
// none of it: as many as any lane takes that gets its deliveries directly. What a lane does not take goes to the consume log, so
// that no other lane waits for it.
func (l *Lanes) RoomFor(kind claim.Kind) (now, atMost int) {
	now, atMost = math.MaxInt, math.MaxInt
	flowing := false
	for _, ln := range l.lanes {
		if ln.c.Replays != nil {
			continue // it gets nothing directly
		}
		free, share, flows := ln.roomFor(kind)
		if !flows {
			continue
		}
		if !flowing || free > now {
			now, atMost = free, share
		}
		flowing = true
	}
	return now, atMost
}

// QueuesAreEmpty reports whether the lanes that take events directly have nothing in their queues.
func (l *Lanes) QueuesAreEmpty() bool {
	for _, ln := range l.lanes {
		if ln.c.Replays == nil && !ln.isDrained() {
			return false
		}
	}
	return true
}

// Most is the most events that the lanes can have in memory.
func (l *Lanes) Most() int {
	most := 1
	for _, ln := range l.lanes {
		most += ln.c.Config.Queue + ln.speed.Settings.Workers*ln.c.Config.Batch
	}
	return most
}

// Retry lets the lanes of these consumers, by their keys, claim and run what waits for them and is due; others are passed over.
// It returns at once; the lanes go on until nothing is due any more.
func (l *Lanes) Retry(ctx context.Context, due []string) error {
	var lanes []*lane
	for _, key := range due {
		if ln := l.lanes[key]; ln != nil {
			lanes = append(lanes, ln)
		}
	}
	if len(lanes) == 0 {
		return nil
	}
	if err := l.cfg.Roster.Refresh(ctx); err != nil {
		return err
	}
	for _, ln := range lanes {
		if !ln.isHalted() || ln.retries.isCutOff() { // what is cut off gives up what is too old
			ln.retries.refill()
		}
	}
	return nil
}

// Has reports whether one of the keys is that of a consumer of these lanes.
func (l *Lanes) Has(keys []string) bool {
	return slices.ContainsFunc(keys, func(key string) bool { return l.lanes[key] != nil })
}

// Renew prolongs the leases of the retried deliveries that are in memory. Call it
// every third of the lease.
func (l *Lanes) Renew(ctx context.Context) error {
	held := make(map[int64]*delivery)
	var rows []store.Leased
	for _, ln := range l.lanes {
		for _, d := range ln.leased() {
			held[d.lease.ID] = d
			rows = append(rows, *d.lease)
		}
	}
	lost, err := l.regs.Log.Renew(ctx, l.cfg.Instance, l.cfg.Lease, rows)
	gone := make([]*claim.Lease, len(lost))
	for i, id := range lost {
		gone[i] = held[id].own
	}
	l.Lose(gone...)
	return err
}

// Expire ends, at once, the leases of waiting deliveries that an earlier run of this instance has left, of those of the keys
// that are consumers of these lanes.
func (l *Lanes) Expire(ctx context.Context, keys []string, owner string) error {
	mine := slices.DeleteFunc(slices.Clone(keys), func(key string) bool { return l.lanes[key] == nil })
	return l.cfg.Budget.Write(ctx, func() error { return l.regs.Log.Expire(ctx, mine, owner) })
}

// Quiesce makes the lanes drop what has not started: it is reported as [settle.Abandoned],
// or put back into the retry queue.
func (l *Lanes) Quiesce(ctx context.Context) {
	left := make(map[*lane][]*delivery)
	for _, ln := range l.lanes { // first all of them: what one begins would keep SQLite's writer from what another gives back
		left[ln] = ln.shut()
	}
	for ln, ds := range left {
		ln.out.giveBack(ctx, ds...)
	}
}

// Drain waits for what runs. When ctx ends it cancels the handlers and waits for them to notice.
func (l *Lanes) Drain(ctx context.Context) error {
	idle := make(chan struct{})
	go func() {
		l.wg.Wait()
		close(idle)
	}()
	defer l.stop(errDrained)
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
	}
	l.stop(errDrained)
	<-idle // handlers that ignore their context are abandoned by their lane
	return errDrained
}

// Broken lists, sorted, the keys of the consumers that are left alone for a while because what they call is away.
func (l *Lanes) Broken() []string {
	var keys []string
	for key, ln := range l.lanes {
		if ln.isBroken() {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// AreIdle reports whether no lane has anything queued or running. One that has ended may have woken another that was looked at
// before it: then the answer is no.
func (l *Lanes) AreIdle() bool {
	woken := l.woken.Load()
	for _, ln := range l.lanes {
		if !ln.isIdle() {
			return false
		}
	}
	return l.woken.Load() == woken
}
