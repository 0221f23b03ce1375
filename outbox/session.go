package outbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/engine/budget"
	due "github.com/bluecone-go/bluecone/internal/engine/claim"
	"github.com/bluecone-go/bluecone/internal/engine/delivery"
	"github.com/bluecone-go/bluecone/internal/engine/health"
	"github.com/bluecone-go/bluecone/internal/engine/registry"
	"github.com/bluecone-go/bluecone/internal/engine/settle"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/telemetry"
)

// session is one run of a publisher: its lanes, its flights and the loops around them.
type session struct {
	p         *Publisher
	lanes     *delivery.Lanes
	consumers []*bus.Consumer
	local     map[string]*bus.Consumer // the same, by their keys
	takers    map[string]takers        // the same, by the event types they take
	size      int                      // of the next claim
	flights   *flights
	spiller   *spiller
	settling  *settling

	stop               chan struct{}
	background         sync.WaitGroup
	draining           atomic.Bool
	mustReleaseOrphans atomic.Bool // something may be leased that is not in flight
	claimed            atomic.Int64
	rollUps            *settle.RollUps
	saidUnroutable     sync.Map
	lastSweep          time.Time
	agenda             due.Agenda
	waiting            []string // keys of the consumers for which deliveries are due, if the agenda says so
	passedOver         bool     // a claim has left events alone for the sake of others
	claimer            *due.Claimer
	registry           *registry.Registry
	roster             *registry.Roster
	budget             *budget.Transactions
	alarm              alarm         // it is time to claim NEW events again
	more               chan struct{} // the last turn has left something
	outage             *health.Outage
	silence            *health.Silence
}

func (p *Publisher) open() *session {
	s := &session{
		p: p, consumers: p.bus.Consumers(), local: make(map[string]*bus.Consumer),
		stop: make(chan struct{}), alarm: newAlarm(), more: make(chan struct{}, 1),
		outage: health.NewOutage(p.ob.logger), silence: health.NewSilence(p.cfg.Lease), size: p.cfg.BatchSize,
	}
	for _, c := range s.consumers {
		s.local[c.Key()] = c
	}
	s.takers, s.registry = takersOf(s.consumers), registry.New(p.ob.registry, typesOf(s.consumers))
	s.claimer = due.NewClaimer(p.ob.db, p.ob.d, p.ob.stmts, s.registry, store.Lease{Owner: p.owner, For: p.cfg.Lease})
	s.roster = registry.NewRoster(p.ob.db, s.registry, p.ob.rotten)
	p.bus.Registrations().Close()
	s.budget = budget.New(p.bus.Registrations())
	s.rollUps = settle.NewRollUps(p.ob.settler, p.ob.meter, s.budget, s.outage, p.cfg.Lease)
	s.lanes = delivery.Open(p.bus.Registrations(), delivery.Config{
		Instance: p.owner, Lease: p.cfg.Lease, MaxInHand: p.cfg.MaxInHand, Budget: s.budget, Roster: s.roster, Outage: s.outage,
		RollUps: s.rollUps,
	})
	s.flights = newFlights(s.lanes.Most()+settle.Batch, p.cfg.MaxInHand)
	s.spiller = &spiller{
		ob: p.ob, budget: s.budget, outage: s.outage, lease: p.cfg.Lease, stop: s.stop,
		filled: make(chan struct{}, 1), writing: make(chan struct{}, 1),
	}
	s.settling = &settling{
		ob: p.ob, owner: p.owner, lease: p.cfg.Lease, lanes: s.lanes, budget: s.budget, flights: s.flights, registry: s.registry, outage: s.outage, stop: s.stop,
		isDraining: &s.draining, mustReleaseOrphans: &s.mustReleaseOrphans,
	}
	p.sessions.Add(1)
	s.background.Go(s.settling.loop)
	s.background.Go(s.spiller.loop)
	s.background.Go(s.settling.renewLoop)
	if p.ob.d.KeepsPlans {
		st := health.Statistics{DB: p.ob.db, Logger: p.ob.logger, Outage: s.outage, Limit: p.cfg.Lease}
		s.background.Go(func() { st.Run(s.stop, &s.claimed) })
	}
	return s
}

// signs are what the heartbeat and the gauges tell of this publisher.
func (s *session) signs() health.Signs {
	return health.Signs{InFlight: len(s.flights.all()), Broken: s.lanes.Broken()}
}

// enroll registers the consumers, for as long as it takes the database to answer. Tables that are not those of this
// release are not waited for: Run ends with a [store.TablesError].
func (s *session) enroll(ctx context.Context) error {
	for try := 1; ; try++ {
		err := s.checkTables(ctx)
		if errors.As(err, new(*store.TablesError)) || errors.Is(err, dialect.ErrQuoting) {
			return err
		}
		if err == nil {
			err = s.register(ctx)
		}
		if err == nil {
			if err = s.silence.Limit(ctx, s.roster.Refresh); err == nil {
				s.outage.End(ctx)
				return nil
			}
		}
		if !s.outage.Wait(ctx, err, try) {
			return ctx.Err()
		}
	}
}

// checkTables looks whether the database reads texts as they are written, and has the tables that this release works on,
// until it was seen to. It does not wait
// for a silent database.
func (s *session) checkTables(ctx context.Context) error {
	if s.p.tables.Load() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.p.cfg.Lease)
	defer cancel()
	if err := s.p.ob.checkQuoting(ctx, s.p.ob.db); err != nil {
		return err
	}
	if err := store.CheckTables(ctx, s.p.ob.db, s.p.ob.d); err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	s.p.tables.Store(true)
	return nil
}

// register announces the consumers. It does not wait for a silent database.
func (s *session) register(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.p.cfg.Lease)
	defer cancel()
	return s.announceConsumers(ctx)
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
		if err := s.register(ctx); err != nil && ctx.Err() == nil {
			s.p.ob.logger.Log(ctx, s.outage.Level(ctx, err), "consumers could not be announced; the next beat tries again", telemetry.Err, err)
		}
	}
}

// loop claims until ctx ends: at once when woken, what has fallen due at every beat (Poll, or more often while there is
// something to do), and everything when Cron says so.
func (s *session) loop(ctx context.Context, wake <-chan struct{}) {
	next := s.p.cron.Next(time.Now())
	timer := time.NewTimer(0)
	defer timer.Stop()
	for try := 0; ctx.Err() == nil; {
		handed := false
		select {
		case <-ctx.Done():
			return
		case <-wake:
			s.agenda.Add(time.Now(), due.Of(due.New))
		case <-s.p.handover.Calls():
			handed = true
		case <-s.alarm.rings:
			s.alarm.isSet = false
			s.agenda.Add(time.Now(), due.Of(due.New))
		case <-s.more:
		case <-timer.C:
		}
		beat := !time.Now().Before(s.agenda.NextLook(s.p.cfg.Poll))
		if beat && s.p.bus.Err() != nil { // registered too late: Run says so
			return
		}
		full := beat && !time.Now().Before(next)
		if full {
			next = s.p.cron.Next(time.Now())
		}
		err := s.silence.Limit(ctx, func(ctx context.Context) error {
			if err := s.releaseOrphans(ctx); err != nil {
				return err
			}
			return s.turn(ctx, handed, beat, full)
		})
		timer.Reset(time.Until(s.agenda.NextLook(s.p.cfg.Poll)))
		if err == nil && s.outage.IsFading() {
			if err = s.register(ctx); err == nil { // that it can be read does not mean that it can be written
				s.outage.End(ctx)
			}
		}
		if err == nil {
			try = 0
			continue
		}
		s.mustReleaseOrphans.Store(true)
		if try++; !s.outage.Wait(ctx, err, try) {
			return
		}
		signal(s.flights.settled) // whatever was missed meanwhile
	}
}

// once does a full cycle and waits for its deliveries. It does another one if it has left events alone that had to wait
// for those, and so on until a cycle claims nothing.
func (s *session) once(ctx context.Context) error {
	if err := s.announceConsumers(ctx); err != nil {
		return err
	}
	for before := int64(-1); s.claimed.Load() > before; {
		before = s.claimed.Load()
		s.passedOver = false
		if err := s.silence.Limit(ctx, func(ctx context.Context) error { return s.cycle(ctx, true, true, true) }); err != nil {
			s.mustReleaseOrphans.Store(true)
			return err
		}
		for ctx.Err() == nil && (s.flights.free() < s.flights.most || !s.lanes.Idle()) {
			select {
			case <-s.flights.settled:
			case <-time.After(2 * time.Millisecond): // lanes have no signal of their own
			case <-ctx.Done():
			}
		}
		if ctx.Err() != nil || !s.passedOver {
			break
		}
	}
	return ctx.Err()
}

// close drains: nothing new starts, what runs may finish, the rest is given back.
func (s *session) close() error {
	defer s.p.sessions.Add(-1)
	s.draining.Store(true)
	ctx, cancel := context.WithTimeout(context.Background(), s.p.cfg.DrainTimeout)
	defer cancel()
	s.lanes.Quiesce(ctx)
	err := s.lanes.Drain(ctx)
	if err := s.spiller.write(ctx); err != nil {
		s.p.ob.logger.WarnContext(ctx, "deliveries could not be queued; their events are claimed again", telemetry.Err, err)
	}
	close(s.stop)
	s.background.Wait()
	if err := s.releaseOrphans(ctx); err != nil { // the end may have come while a claim was being stored
		s.p.ob.logger.WarnContext(ctx, "leased events could not be given back; they are due when their leases are out", telemetry.Err, err)
	}
	if err != nil {
		return fmt.Errorf("outbox: handlers were still running %v after the end: %w", s.p.cfg.DrainTimeout, err)
	}
	return nil
}

// heartbeat is that of this publisher.
func (s *session) heartbeat() health.Heartbeat {
	return health.Heartbeat{DB: s.p.ob.db, Rows: s.p.ob.instances, Logger: s.p.ob.logger, Name: s.p.name, Owner: s.p.owner}
}

// gauges are those of this publisher.
func (s *session) gauges() health.Gauges {
	o := s.p.ob
	return health.Gauges{
		DB: o.db, Dialect: o.d, Queues: o.queues, Events: o.settling, Consumers: s.p.bus.Registrations().Consumers, Metrics: o.metrics,
		Logger: o.logger,
	}
}
