package remote

import (
	"context"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/bluecone-go/bluecone/internal/spi"
	"github.com/bluecone-go/bluecone/ledger/ledgerv1"
)

const ackPause = 500 * time.Millisecond

// acknowledge tells the ledger what has ended, all that there is in one call, until work ends.
func (p *puller) acknowledge(work context.Context) {
	for {
		select {
		case first := <-p.acks:
			p.ack(work, p.gather(first))
		case <-work.Done():
			return
		}
	}
}

func (p *puller) gather(first *ledgerv1.FinishConsumeRequest) []*ledgerv1.FinishConsumeRequest {
	all := []*ledgerv1.FinishConsumeRequest{first}
	for len(all) < p.most {
		select {
		case next := <-p.acks:
			all = append(all, next)
		default:
			return all
		}
	}
	return all
}

// ack repeats the call until the ledger answers. Its answers may say that leases were lost: then somebody else has the deliveries, and
// finds in the log of this database what is done.
func (p *puller) ack(work context.Context, all []*ledgerv1.FinishConsumeRequest) {
	for {
		got, err := p.client.Ack(work, &ledgerv1.AckRequest{Acks: all})
		if err == nil && len(got.GetStates()) == len(all) {
			for i, state := range got.GetStates() {
				p.ended(work, all[i], state)
			}
			return
		}
		p.c.CountFailedCall(work)
		p.cfg.Logger.WarnContext(work, "the ledger does not take what has ended; it is told again", "consumer", p.c.Key(), "count", len(all),
			"error", err)
		select {
		case <-time.After(ackPause):
		case <-work.Done():
			return
		}
	}
}

// ended reports a delivery that is over, and takes it out of those in flight.
func (p *puller) ended(ctx context.Context, finish *ledgerv1.FinishConsumeRequest, state *ledgerv1.AckState) {
	p.mu.Lock()
	h := p.inFlight[finish.GetConsumeToken()]
	p.mu.Unlock()
	if h == nil {
		return
	}
	defer p.release(h.token)
	logger := p.cfg.Logger.With("consumer", p.c.Key(), "eventId", h.message.Event.ID, "attempt", h.message.Attempt)
	switch {
	case state.GetError() != nil:
		p.c.CountLostLease(ctx)
		logger.WarnContext(ctx, "the ledger did not take the end of a delivery", "error", state.GetError().GetMessage())
	case state.GetState() == "DEAD":
		logger.ErrorContext(ctx, "delivery is DEAD and waits for an operator", "error", finish.GetError())
		if err := spi.DeadLetter(ctx, p.bus, p.c.Key(), h.message, finish.GetError()); err != nil {
			logger.ErrorContext(ctx, "the hook for dead letters failed", "error", err)
		}
	case state.GetState() == "FAILED":
		logger.WarnContext(ctx, "attempt failed; it will be tried again", "error", finish.GetError())
	}
}

// beatsAtOnce is how many Heartbeats are under way at a time.
const beatsAtOnce = 8

// beat renews the leases of what is in flight, until work ends.
func (p *puller) beat(work context.Context) {
	tick := time.NewTicker(p.cfg.Heartbeat / 2)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-work.Done():
			return
		}
		var all sync.WaitGroup
		slots := make(chan struct{}, beatsAtOnce)
		for _, h := range p.due() {
			slots <- struct{}{}
			all.Go(func() {
				p.beatOne(work, h)
				<-slots
			})
		}
		all.Wait()
	}
}

// due are the deliveries whose leases were last renewed long ago.
func (p *puller) due() (due []*held) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, h := range p.inFlight {
		if !h.lost && time.Since(h.renewed) >= p.cfg.Heartbeat {
			due = append(due, h)
		}
	}
	return due
}

// beatOne renews a lease. If it is lost, the delivery is let go: its run is told by the end of its context.
func (p *puller) beatOne(ctx context.Context, h *held) {
	_, err := p.client.Heartbeat(ctx, &ledgerv1.HeartbeatRequest{ConsumeToken: h.token})
	code := connect.CodeOf(err)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case err == nil:
		h.renewed = time.Now()
	case code == connect.CodeAborted || code == connect.CodeNotFound:
		if p.inFlight[h.token] == nil {
			return // it was acknowledged meanwhile
		}
		p.cfg.Logger.WarnContext(ctx, "the lease of a delivery was lost; its new holder goes on", "consumer", p.c.Key(),
			"eventId", h.message.Event.ID)
		p.c.CountLostLease(ctx)
		h.lost = true
		if h.stop != nil {
			h.stop()
		}
	default:
		p.c.CountFailedCall(ctx)
		p.cfg.Logger.WarnContext(ctx, "a lease could not be renewed", "consumer", p.c.Key(), "eventId", h.message.Event.ID, "error", err)
	}
}
