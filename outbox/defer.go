package outbox

import (
	"context"
	"errors"
	"time"

	"github.com/bluecone-go/bluecone/internal/engine/delivery"
	"github.com/bluecone-go/bluecone/internal/engine/settle"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/telemetry"
)

// deferFor is how long deliveries that have to wait are held, for others to be written into the consume log with
// them: nobody is in a hurry to wait.
const deferFor = settle.Later

// deferAll keeps events, some of whose deliveries have to wait, until those are in the consume log. What is next to be
// claimed does not wait for that. Until then they are open, so nothing behind them runs.
func (s *session) deferAll(flights []*flight) {
	if len(flights) == 0 {
		return
	}
	s.mu.Lock()
	s.deferred = append(s.deferred, flights...)
	s.mu.Unlock()
	signal(s.deferring)
}

// deferLoop writes what is held into the consume log, as many at once as there are.
func (s *session) deferLoop() {
	for {
		select {
		case <-s.deferring:
		case <-s.stop:
			return
		}
		select {
		case <-time.After(deferFor):
		case <-s.stop:
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), s.p.cfg.Lease)
		if err := s.writeDeferred(ctx); err != nil {
			s.p.ob.logger.Log(ctx, s.outage.level(ctx, err), "deliveries could not be queued; their events are claimed again", telemetry.Err, err)
		}
		cancel()
	}
}

// writeDeferred writes all that is held, and has written it when it returns, whoever has begun, unless ctx ends while
// somebody else is at it: then that one writes it all. What cannot be written is settled all the same: then it is seen
// that a delivery is missing, and the event is claimed again.
func (s *session) writeDeferred(ctx context.Context) (err error) {
	select {
	case s.writes <- struct{}{}:
		defer func() { <-s.writes }()
	case <-ctx.Done():
		return ctx.Err()
	}
	for held := s.takeDeferred(); len(held) > 0; held = s.takeDeferred() {
		var waiting []store.Delivery
		for _, f := range held {
			for i, consumer := range f.waits {
				d := f.delivery(consumer)
				d.Left, d.Suspect = i < f.left, s.isSuspect(f, consumer)
				waiting = append(waiting, d)
			}
		}
		over := s.lanes.Turn()
		err = errors.Join(err, s.p.ob.log.Defer(ctx, s.p.ob.db, waiting, 0))
		over()
		for _, f := range held {
			f.done(delivery.Succeeded) // the dispatch itself
		}
	}
	return err
}

func (s *session) takeDeferred() []*flight {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := fit(s.deferred)
	held := s.deferred[:n:n]
	s.deferred = s.deferred[n:]
	return held
}

// fit tells how many of the flights, from the first, make a batch.
func fit(flights []*flight) int {
	looks := 0
	for i, f := range flights {
		if looks += len(f.event().Uncertain()); i == settle.Batch || (i > 0 && looks > settle.MostLooks) {
			return i
		}
	}
	return len(flights)
}
