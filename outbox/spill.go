package outbox

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/bluecone-go/bluecone/internal/engine/budget"
	"github.com/bluecone-go/bluecone/internal/engine/delivery"
	"github.com/bluecone-go/bluecone/internal/engine/health"
	"github.com/bluecone-go/bluecone/internal/engine/settle"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/telemetry"
)

// spillAfter is how long deliveries that have to wait are held, for others to be written into the consume log with them:
// nobody needs them there at once.
const spillAfter = settle.Later

// spilled is an event, and those of its deliveries that have to wait in the log.
type spilled struct {
	f          *flight
	deliveries []store.Delivery
}

// spill hands events, some of whose deliveries have to wait, to the spiller. The next claim does not wait for it. Until they
// are written the events are open, so nothing behind them runs.
func (s *session) spill(flights []*flight) {
	if len(flights) == 0 {
		return
	}
	all := make([]spilled, len(flights))
	for n, f := range flights {
		all[n].f = f
		for i, consumer := range f.waits {
			d := f.delivery(consumer)
			d.Left, d.Suspect = i < f.left, s.isSuspect(f, consumer)
			all[n].deliveries = append(all[n].deliveries, d)
		}
	}
	s.spiller.add(all)
}

// spiller writes deliveries that have to wait into the consume log, those of a while together.
type spiller struct {
	ob     *Outbox
	budget *budget.Transactions
	outage *health.Outage
	lease  time.Duration // how long one write may take
	stop   <-chan struct{}

	filled  chan struct{} // something is held
	writing chan struct{} // the goroutine that writes holds this token

	mu   sync.Mutex
	held []spilled
}

// add holds events until their deliveries are written.
func (p *spiller) add(all []spilled) {
	p.mu.Lock()
	p.held = append(p.held, all...)
	p.mu.Unlock()
	signal(p.filled)
}

// loop writes what is held, as much at once as there is.
func (p *spiller) loop() {
	for {
		select {
		case <-p.filled:
		case <-p.stop:
			return
		}
		select {
		case <-time.After(spillAfter):
		case <-p.stop:
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), p.lease)
		if err := p.write(ctx); err != nil {
			p.ob.logger.Log(ctx, p.outage.Level(ctx, err), "deliveries could not be queued; their events are claimed again", telemetry.Err, err)
		}
		cancel()
	}
}

// write writes all that is held. Another goroutine may write already: then this one waits until that one has, or ctx ends. What
// cannot be written is settled all the same: then it is seen that a delivery is missing, and the event is claimed again.
func (p *spiller) write(ctx context.Context) (err error) {
	select {
	case p.writing <- struct{}{}:
		defer func() { <-p.writing }()
	case <-ctx.Done():
		return ctx.Err()
	}
	for held := p.take(); len(held) > 0; held = p.take() {
		var waiting []store.Delivery
		for _, e := range held {
			waiting = append(waiting, e.deliveries...)
		}
		over := p.budget.Turn()
		err = errors.Join(err, p.ob.log.Defer(ctx, p.ob.db, waiting, 0))
		over()
		for _, e := range held {
			e.f.done(delivery.Succeeded) // the dispatch itself
		}
	}
	return err
}

// take takes events whose deliveries are written together.
func (p *spiller) take() []spilled {
	p.mu.Lock()
	defer p.mu.Unlock()
	n, rows := 0, 0
	for n < len(p.held) && n < settle.Batch {
		if rows += len(p.held[n].f.event().Uncertain()); n > 0 && rows > settle.MostLooks {
			break
		}
		n++
	}
	held := p.held[:n:n]
	p.held = p.held[n:]
	return held
}
