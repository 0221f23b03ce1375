package outbox

import (
	"context"
	"time"

	"github.com/bluecone-go/bluecone/internal/engine/settle"
	"github.com/bluecone-go/bluecone/internal/telemetry"
)

// settleLoop settles whatever has landed, as many at once as there are.
func (s *session) settleLoop() {
	for {
		select {
		case <-s.landing:
			s.linger()
		case <-s.stop:
			s.settleLanded(true)
			return
		}
		s.settleLanded(false)
	}
}

func (s *session) linger() {
	s.mu.Lock()
	isFull := s.landed.IsFull(len(s.flights))
	s.mu.Unlock()
	if isFull {
		return
	}
	select {
	case <-time.After(settle.Linger):
	case <-s.stop:
	}
}

func (s *session) settleLanded(all bool) {
	for flights := s.takeLanded(all); len(flights) > 0; flights = s.takeLanded(all) {
		ctx, cancel := context.WithTimeout(context.Background(), s.p.cfg.Lease)
		err := s.settle(ctx, flights)
		if err == nil {
			s.announce(ctx, flights)
		} else {
			s.p.ob.logger.Log(ctx, s.outage.level(ctx, err), "events could not be settled; they are claimed again when the database answers, "+
				"or their leases expire", telemetry.Count, len(flights), telemetry.Err, err)
		}
		cancel()
		s.mu.Lock()
		for _, f := range flights {
			delete(s.flights, f.row.OutboxID)
			s.bytes -= f.bytes()
		}
		s.mu.Unlock()
		if err != nil {
			s.mustReleaseOrphans.Store(true)
		}
		signal(s.settled)
	}
}

// takeLanded takes what is settled now of what has landed. If something is left the loop hears of it.
func (s *session) takeLanded(all bool) []*flight {
	s.mu.Lock()
	defer s.mu.Unlock()
	flights, again := s.landed.Take(time.Now(), len(s.flights), all)
	if again >= 0 {
		time.AfterFunc(again, func() {
			s.mu.Lock()
			s.landed.Tick()
			s.mu.Unlock()
			signal(s.landing)
		})
	}
	return flights
}
