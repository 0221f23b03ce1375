package outbox

import (
	"context"
	"time"

	"github.com/bluecone-go/bluecone/internal/telemetry"
)

const (
	settleBatch = 500
	// mostLooks is how many deliveries are looked at or written for the events of a batch, unless it is one event: one may
	// have thousands.
	mostLooks = 20_000
	// settleLinger is how long to wait for other events to land, if there are others: nobody is waiting
	// for the settling.
	settleLinger = 5 * time.Millisecond
	// settleLater is how long those wait whose deliveries have to be looked at, five statements for one
	// event or many. A lane that is behind, paused or failing makes one of every event.
	settleLater = 50 * time.Millisecond
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
	hurry := s.hurried()
	s.mu.Unlock()
	if hurry {
		return
	}
	select {
	case <-time.After(settleLinger):
	case <-s.stop:
	}
}

// hurried tells whether waiting for others to land is in vain. It needs s.mu.
func (s *session) hurried() bool {
	return len(s.landed) == len(s.flights) || len(s.landed) >= settleBatch
}

func (s *session) settleLanded(all bool) {
	for flights := s.ripe(all); len(flights) > 0; flights = s.ripe(all) {
		ctx, cancel := context.WithTimeout(context.Background(), s.p.cfg.Lease)
		err := s.settle(ctx, flights)
		if err == nil {
			s.announce(ctx, flights)
		} else {
			s.p.ob.logger.Log(ctx, s.outage.level(ctx, err), "events could not be settled; they are claimed again when the database answers, or their leases expire", telemetry.Count, len(flights), telemetry.Err, err)
		}
		cancel()
		s.mu.Lock()
		for _, f := range flights {
			delete(s.flights, f.row.OutboxID)
			s.bytes -= f.bytes()
		}
		s.mu.Unlock()
		if err != nil {
			s.doubt.Store(true)
		}
		signal(s.settled)
	}
}

// ripe takes what is to be settled now out of what has landed. If something is left it will be heard of.
func (s *session) ripe(all bool) []*flight {
	s.mu.Lock()
	defer s.mu.Unlock()
	all = all || s.hurried()
	var now, rest []*flight
	looks := 0
	for _, f := range s.landed {
		fits := len(now) == 0 || (len(now) < settleBatch && looks+len(f.uncertain()) <= mostLooks)
		if fits && (all || f.delivered() || time.Since(f.landedAt) >= settleLater) {
			now, looks = append(now, f), looks+len(f.uncertain())
		} else {
			rest = append(rest, f)
		}
	}
	s.landed = rest
	if len(now) == 0 && len(rest) > 0 && !s.later {
		s.later = true
		time.AfterFunc(settleLater-time.Since(rest[0].landedAt), s.ripen)
	}
	return now
}

// ripen tells the loop that something that was left has waited long enough.
func (s *session) ripen() {
	s.mu.Lock()
	s.later = false
	s.mu.Unlock()
	signal(s.landing)
}

// fit tells how many of the flights, from the first, make a batch.
func fit(flights []*flight) int {
	looks := 0
	for i, f := range flights {
		if looks += len(f.uncertain()); i == settleBatch || (i > 0 && looks > mostLooks) {
			return i
		}
	}
	return len(flights)
}
