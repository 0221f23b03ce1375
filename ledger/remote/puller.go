package remote

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/bluecone-go/bluecone/internal/spi"
	"github.com/bluecone-go/bluecone/ledger/ledgerv1"
)

// held is a delivery in flight: from Fetch until its end is acknowledged.
type held struct {
	token   string
	message *spi.PulledMessage
	renewed time.Time          // when its lease was last renewed, by this clock
	began   time.Time          // its first run here; zero before that
	stop    context.CancelFunc // of its run; nil while it waits
	lost    bool               // its lease is
}

// puller gets the deliveries of one consumer.
type puller struct {
	*Runner

	c     *spi.PulledConsumer
	most  int                                 // deliveries in flight
	queue chan *held                          // what waits to be run; it has room for all that is in flight
	acks  chan *ledgerv1.FinishConsumeRequest // what has ended; likewise

	mu       sync.Mutex
	rate     spi.Bucket       // of what starts
	inFlight map[string]*held // by token; what is lost stays until nobody runs it
	waiting  int              // of those, what waits for its next run
	room     chan struct{}    // told when something is no longer in flight
}

func newPuller(r *Runner, c *spi.PulledConsumer) *puller {
	most := r.cfg.Max
	if rate := c.Rate(); rate > 0 {
		most = min(most, int(math.Ceil(rate))) // what starts within a second: the rest is for others
	}
	return &puller{
		Runner: r, c: c, most: most, rate: spi.NewBucket(c.Rate()), inFlight: make(map[string]*held), room: make(chan struct{}, 1),
		queue: make(chan *held, most), acks: make(chan *ledgerv1.FinishConsumeRequest, most),
	}
}

// run works until ctx ends, and then until nothing is in flight.
func (p *puller) run(ctx context.Context) (err error) {
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	end, err := p.c.Measure(ctx, p.count)
	if err != nil {
		return fmt.Errorf("remote: consumer %s: %w", p.c.Key(), err)
	}
	defer func() { err = errors.Join(err, end()) }()
	var all sync.WaitGroup
	batches, most := p.c.Workers()
	for range batches {
		all.Go(func() { p.work(ctx, work, batches, most) })
	}
	all.Go(func() { p.acknowledge(work) })
	all.Go(func() { p.beat(work) })
	err = p.fetch(ctx)
	over := time.NewTimer(p.cfg.Drain)
	defer over.Stop()
	for p.count() > 0 {
		select {
		case <-p.room:
		case <-over.C:
			p.cfg.Logger.WarnContext(ctx, "deliveries of the ledger were left; they come again when their leases end", "consumer", p.c.Key(),
				"count", p.count())
			stop()
			all.Wait()
			return err
		}
	}
	stop()
	all.Wait()
	return err
}

// count is how many deliveries are in flight.
func (p *puller) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.inFlight)
}

// refusals are what no repetition fixes.
var refusals = []connect.Code{ //nolint:gochecknoglobals // a constant list
	connect.CodeUnauthenticated, connect.CodePermissionDenied, connect.CodeInvalidArgument, connect.CodeUnimplemented,
}

const longestPause = 15 * time.Second

// fetch fetches as much as there is room for until ctx ends. If the ledger refuses the first call, it returns the error.
func (p *puller) fetch(ctx context.Context) error {
	pause := time.Duration(0)
	for isFirst := true; ctx.Err() == nil; {
		free := p.most - p.count()
		if free <= 0 {
			select {
			case <-p.room:
			case <-ctx.Done():
			}
			continue
		}
		got, err := p.client.Fetch(ctx, &ledgerv1.FetchRequest{
			Consumer: p.c.Key(), EventTypes: p.c.EventTypes(), Max: int32(free), Wait: durationpb.New(p.cfg.Wait),
		})
		if err == nil {
			p.take(got.GetDeliveries())
			isFirst, pause = false, 0
			continue
		}
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the end was asked for
		case isFirst && slices.Contains(refusals, connect.CodeOf(err)):
			return fmt.Errorf("remote: consumer %s: %w", p.c.Key(), err)
		}
		p.c.CountFailedCall(ctx)
		pause = min(max(2*pause, 100*time.Millisecond), longestPause)
		p.cfg.Logger.WarnContext(ctx, "the ledger gives no deliveries; the next Fetch follows", "consumer", p.c.Key(), "error", err, "in", pause)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
	return nil
}

func (p *puller) take(ds []*ledgerv1.Delivery) {
	for _, d := range ds {
		e := d.GetEvent()
		h := &held{token: d.GetConsumeToken(), renewed: time.Now(), message: spi.NewPulledMessage(spi.Event{
			ID: e.GetEventId(), Type: e.GetEventType(), AggregateType: e.GetAggregateType(), AggregateID: e.GetAggregateId(),
			TenantID: e.GetTenantId(), SchemaVersion: int(e.GetSchemaVersion()), Payload: e.GetPayload(), Metadata: e.GetMetadata(),
		}, int(d.GetAttempt()))}
		p.mu.Lock()
		p.inFlight[h.token] = h
		p.mu.Unlock()
		p.queue <- h
	}
}

// release takes a delivery out of those in flight.
func (p *puller) release(token string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.inFlight, token)
	select {
	case p.room <- struct{}{}:
	default:
	}
}

// work runs batches until work ends.
func (p *puller) work(ctx, work context.Context, batches, most int) {
	for {
		select {
		case h := <-p.queue:
			if !p.wait(work) {
				return
			}
			p.runBatch(ctx, work, p.batch(h, min(most, 1+len(p.queue)/batches)))
		case <-work.Done():
			return
		}
	}
}

// batch is h and what waits behind it that one call or transaction takes, so many at most and no more than the rate allows, without
// what was lost meanwhile.
func (p *puller) batch(h *held, most int) []*held {
	all := []*held{h}
	for len(all) < most {
		select {
		case next := <-p.queue:
			if p.c.Joins(h.message, next.message) && p.mayStart() == 0 {
				all = append(all, next)
				continue
			}
			p.queue <- next // it has room for all that is in flight
		default:
		}
		break
	}
	return slices.DeleteFunc(all, p.dropped)
}

// mayStart takes leave to start a delivery, or tells after what time to ask again.
func (p *puller) mayStart() (after time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	may, after := p.rate.Limit(time.Now(), 1)
	if may > 0 {
		p.rate.Spend(time.Now(), 1)
	}
	return after
}

// wait waits until a delivery may start, and reports whether that was before work has ended.
func (p *puller) wait(work context.Context) bool {
	for after := p.mayStart(); after > 0; after = p.mayStart() {
		select {
		case <-time.After(after):
		case <-work.Done():
			return false
		}
	}
	return true
}

// dropped lets go of a delivery that is lost.
func (p *puller) dropped(h *held) bool {
	p.mu.Lock()
	h.stop = nil
	lost := h.lost
	p.mu.Unlock()
	if lost {
		p.release(h.token)
	}
	return lost
}

// runBatch runs deliveries, and passes on what has become of them. ctx says whether the process ends.
func (p *puller) runBatch(ctx, work context.Context, hs []*held) {
	if len(hs) == 0 {
		return
	}
	run, stop := context.WithCancel(work)
	defer stop()
	ms := make([]*spi.PulledMessage, len(hs))
	p.mu.Lock()
	for i, h := range hs {
		ms[i], h.stop = h.message, stop
		if h.began.IsZero() {
			h.began = time.Now()
		}
	}
	p.mu.Unlock()
	answers := p.c.Run(run, ms)
	for i, h := range hs {
		if !p.dropped(h) {
			p.pass(ctx, h, p.c.EndAged(ctx, h.message, time.Since(h.began), answers[i]))
		}
	}
}

// What the ledger takes of a result.
const (
	maxResult      = 64 << 10
	maxResultDepth = 100
)

// canBeKept reports whether the ledger would take a result.
func canBeKept(result []byte) bool {
	return len(result) <= maxResult && spi.RemoteFinish{Result: string(result)}.CheckResult(maxResultDepth) == nil
}

// pass acknowledges a delivery, lets it wait here for its next run, or leaves it because the process ends.
func (p *puller) pass(ctx context.Context, h *held, a spi.PulledAnswer) {
	switch {
	case a.Outcome == spi.PulledLater && ctx.Err() != nil:
		p.leave(ctx, h)
		return
	case a.Outcome == spi.PulledLater && p.mayWait(a):
		p.cfg.Logger.InfoContext(ctx, "a delivery is run again, and does not count", "consumer", p.c.Key(), "eventId", h.message.Event.ID,
			"in", a.After, "error", a.Error)
		go p.again(ctx, h, a.After)
		return
	}
	if !canBeKept(a.Result) {
		a.Result = nil // it stands in the log of this database, if anywhere
	}
	finish := &ledgerv1.FinishConsumeRequest{ConsumeToken: h.token, Outcome: "FAILED", Error: a.Error}
	switch a.Outcome {
	case spi.PulledSuccess:
		finish.Outcome, finish.Result = "SUCCESS", a.Result
	case spi.PulledSkipped:
		finish.Outcome = "SKIPPED"
	case spi.PulledPermanent:
		finish.Outcome = "PERMANENT"
	case spi.PulledFailed, spi.PulledLater:
	}
	p.acks <- finish
}

// again lets a delivery wait for its next run. If the process ends before that, it is left.
func (p *puller) again(ctx context.Context, h *held, after time.Duration) {
	due := time.NewTimer(after)
	defer due.Stop()
	isDue := true
	select {
	case <-due.C:
	case <-ctx.Done():
		isDue = false
	}
	p.mu.Lock()
	p.waiting--
	p.mu.Unlock()
	if isDue {
		p.queue <- h
	} else {
		p.leave(ctx, h)
	}
}

// leave lets go of a delivery that has not ended: to acknowledge it would count an attempt.
func (p *puller) leave(ctx context.Context, h *held) {
	p.cfg.Logger.InfoContext(ctx, "a delivery that waited for its next run is left; it comes again when its lease ends",
		"consumer", p.c.Key(), "eventId", h.message.Event.ID)
	p.release(h.token)
}

// mayWait reports whether a delivery may wait here. Where half of those in flight wait already because handlers have asked for that,
// what they wait for might not find room: then it goes back to the ledger.
func (p *puller) mayWait(a spi.PulledAnswer) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a.IsAsked && p.waiting >= p.most/2 {
		return false
	}
	p.waiting++
	return true
}
