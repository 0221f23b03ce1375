package outbox

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/eventrow"
	"github.com/bluecone-go/bluecone/internal/telemetry"
)

// session is one run of a publisher: its lanes, its flights and the loops around them.
type session struct {
	p         *Publisher
	lanes     *bus.Lanes
	consumers []*bus.Consumer
	aliases   map[string][]string
	least     int // events that are worth a claim while there are more
	most      int // flights there may be: what is in the lanes, and what waits to be settled

	mu      sync.Mutex
	flights map[int64]*flight // by outbox id
	landed  []*flight         // waiting to be settled
	paused  map[string]bool

	landing        chan struct{} // something has landed
	settled        chan struct{} // something has been settled: there is room
	stop           chan struct{}
	background     sync.WaitGroup
	draining       atomic.Bool
	claimed        atomic.Int64
	retried        atomic.Int64
	saidUnroutable sync.Map
	lastSweep      time.Time
}

func (p *Publisher) open() *session {
	s := &session{
		p: p, consumers: p.bus.Consumers(), aliases: make(map[string][]string),
		flights: make(map[int64]*flight), paused: make(map[string]bool),
		landing: make(chan struct{}, 1), settled: make(chan struct{}, 1), stop: make(chan struct{}),
	}
	for _, c := range s.consumers {
		s.aliases[c.Name()] = c.Aliases()
	}
	s.lanes = p.bus.Open(bus.Host{Instance: p.owner, Lease: p.cfg.Lease, Ended: s.rollUp, Refresh: s.refresh, Paused: s.isPaused})
	s.most, s.least = s.lanes.Most()+settleBatch, p.cfg.BatchSize
	for _, c := range s.consumers {
		s.least = min(s.least, c.Queue())
	}
	s.least = s.least/2 + 1
	s.background.Go(s.settleLoop)
	s.background.Go(s.renewLoop)
	return s
}

// launch turns a claimed row into a flight.
func (s *session) launch(row eventrow.Row) *flight {
	f := newFlight(row, s.land)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flights[row.OutboxID] = f
	s.claimed.Add(1)
	return f
}

// land queues a flight for settling.
func (s *session) land(f *flight) {
	s.mu.Lock()
	s.landed = append(s.landed, f)
	s.mu.Unlock()
	signal(s.landing)
}

func (s *session) inFlight() []*flight {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*flight, 0, len(s.flights))
	for _, f := range s.flights {
		out = append(out, f)
	}
	return out
}

func (s *session) free() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.most - len(s.flights)
}

func (s *session) isPaused(consumer string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.paused[consumer]
}

// refresh reads which consumers are paused.
func (s *session) refresh(ctx context.Context) error {
	all, err := s.p.ob.registrations(ctx, s.p.ob.db)
	if err == nil {
		s.setPaused(all)
	}
	return err
}

func (s *session) setPaused(all []registration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range all {
		s.paused[r.name] = r.paused
	}
}

// settleLoop settles whatever has landed, as many at once as there are.
func (s *session) settleLoop() {
	for {
		select {
		case <-s.landing:
		case <-s.stop:
			s.settleLanded()
			return
		}
		s.settleLanded()
	}
}

const settleBatch = 500

func (s *session) settleLanded() {
	for {
		s.mu.Lock()
		n := min(len(s.landed), settleBatch)
		flights := s.landed[:n:n]
		s.landed = s.landed[n:]
		s.mu.Unlock()
		if n == 0 {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), s.p.cfg.Lease)
		err := s.settle(ctx, flights)
		if err == nil {
			s.announce(ctx, flights)
		} else {
			s.p.ob.logger.WarnContext(ctx, "events could not be settled; they are claimed again when their leases expire", telemetry.Count, n, telemetry.Err, err)
		}
		cancel()
		s.mu.Lock()
		for _, f := range flights {
			delete(s.flights, f.row.OutboxID)
			f.cancel(nil)
		}
		s.mu.Unlock()
		signal(s.settled)
	}
}

// renewLoop renews all leases at a third of their length.
func (s *session) renewLoop() {
	tick := time.NewTicker(s.p.cfg.Lease / 3)
	defer tick.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-tick.C:
		}
		ctx, cancel := context.WithTimeout(context.Background(), s.p.cfg.Lease/3)
		if err := s.renew(ctx); err != nil {
			s.p.ob.logger.WarnContext(ctx, "leases could not be renewed; the next beat tries again", telemetry.Err, err)
		}
		cancel()
	}
}

// enroll registers the consumers, for as long as it takes the database to answer.
func (s *session) enroll(ctx context.Context) error {
	var outage outage
	for try := 1; ; try++ {
		err := s.p.ob.register(ctx, s.consumers)
		if err == nil {
			if err = s.refresh(ctx); err == nil {
				outage.over(ctx, s.p.ob.logger)
				return nil
			}
		}
		if !outage.wait(ctx, s.p.ob.logger, err, try) {
			return ctx.Err()
		}
	}
}

const aliveEvery = 30 * time.Second

// keepAlive renews in the registry that this instance's consumers are alive.
func (s *session) keepAlive(ctx context.Context) {
	tick := time.NewTicker(aliveEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.stop:
			return
		case <-tick.C:
		}
		if err := s.p.ob.register(ctx, s.consumers); err != nil && ctx.Err() == nil {
			s.p.ob.logger.WarnContext(ctx, "consumers could not be announced; the next beat tries again", telemetry.Err, err)
		}
	}
}

// loop claims until ctx ends: at once when woken, at every beat of Poll what has fallen
// due, and everything when Cron says so.
func (s *session) loop(ctx context.Context, wake <-chan struct{}) {
	var outage outage
	next := s.p.cron.Next(time.Now())
	timer := time.NewTimer(0)
	defer timer.Stop()
	for try := 0; ctx.Err() == nil; {
		full, beat := false, false
		select {
		case <-ctx.Done():
			return
		case <-wake:
		case <-timer.C:
			beat = true
			if !time.Now().Before(next) {
				full, next = true, s.p.cron.Next(time.Now())
			}
		}
		err := s.cycle(ctx, beat, full)
		if beat {
			timer.Reset(s.p.cfg.Poll)
		}
		if err == nil {
			outage.over(ctx, s.p.ob.logger)
			try = 0
			continue
		}
		if try++; !outage.wait(ctx, s.p.ob.logger, err, try) {
			return
		}
		signal(s.settled) // whatever was missed meanwhile
	}
}

// cycle claims what is due and hands it to the lanes.
func (s *session) cycle(ctx context.Context, beat, full bool) error {
	due := due{fresh: true}
	var err error
	if beat && !full {
		if due, err = s.peek(ctx); err != nil {
			return err
		}
	}
	if full {
		due.scheduled, due.expired = true, true
		if err := s.sweep(ctx); err != nil {
			return err
		}
	}
	for _, claims := range []struct {
		wanted bool
		where  string
	}{{due.expired, s.expired()}, {due.scheduled, s.scheduled()}, {due.fresh, dueNew}} {
		if claims.wanted {
			if err := s.claimAll(ctx, claims.where); err != nil {
				return err
			}
		}
	}
	if !beat {
		return nil
	}
	return s.lanes.Retry(ctx)
}

// claimAll claims until nothing more is due, as far as there is room.
func (s *session) claimAll(ctx context.Context, where string) error {
	for ctx.Err() == nil {
		size := min(s.free(), s.lanes.Room(), s.p.cfg.BatchSize)
		if size < s.least {
			select {
			case <-s.settled:
			case <-s.lanes.Freed():
			case <-time.After(20 * time.Millisecond): // a lane may have to fall behind
			case <-ctx.Done():
				return nil
			}
			continue
		}
		c, err := s.claim(ctx, where, size)
		if err != nil {
			return err
		}
		if len(c.rows) > 0 {
			if err := s.dispatch(ctx, c); err != nil {
				return err
			}
		}
		if len(c.rows) == 0 || !c.full {
			return nil
		}
	}
	return nil
}

// due says which kinds of events are due.
type due struct{ fresh, scheduled, expired bool }

// peek looks, in one statement that locks nothing, whether a claim is worth it.
func (s *session) peek(ctx context.Context) (d due, err error) {
	exists := func(where string) string {
		return "CASE WHEN EXISTS (SELECT 1 FROM " + table + " e WHERE " + where + ") THEN 1 ELSE 0 END"
	}
	var fresh, scheduled, expired int
	err = s.p.ob.db.QueryRowContext(ctx, "SELECT "+exists(dueNew)+", "+exists(s.scheduled())+", "+exists(s.expired())).Scan(&fresh, &scheduled, &expired)
	if err != nil {
		return due{}, fmt.Errorf("outbox: look for due events: %w", err)
	}
	return due{fresh == 1, scheduled == 1, expired == 1}, nil
}

// once does one full cycle and waits for its deliveries.
func (s *session) once(ctx context.Context) error {
	if err := s.p.ob.register(ctx, s.consumers); err != nil {
		return err
	}
	if err := s.cycle(ctx, true, true); err != nil {
		return err
	}
	for ctx.Err() == nil && (s.free() < s.most || !s.lanes.Idle()) {
		select {
		case <-s.settled:
		case <-time.After(2 * time.Millisecond): // lanes have no signal of their own
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}

// close drains: nothing new starts, what runs may finish, the rest is given back.
func (s *session) close() error {
	s.draining.Store(true)
	ctx, cancel := context.WithTimeout(context.Background(), s.p.cfg.DrainTimeout)
	defer cancel()
	s.lanes.Quiesce(ctx)
	err := s.lanes.Drain(ctx)
	close(s.stop)
	s.background.Wait()
	if err != nil {
		return fmt.Errorf("outbox: handlers were still running %v after the end: %w", s.p.cfg.DrainTimeout, err)
	}
	return nil
}
