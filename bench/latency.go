package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/outbox"
)

// courier delivers events in W2: save stores one in the caller's transaction.
type courier struct {
	save func(ctx context.Context, tx txn, e paid) error
	run  func(ctx context.Context, fn func(ctx context.Context, tx txn) error) error // nil: a plain transaction
	stop func() error
}

// txn is a business transaction of one driver or the other.
type txn struct {
	sql   *sql.Tx
	cache bool // lets the driver prepare statements on a pool that does not by itself
	pgx   pgx.Tx
}

func (t txn) exec(ctx context.Context, query string, args ...any) (err error) {
	if t.pgx != nil {
		_, err = t.pgx.Exec(ctx, query, args...)
		return err
	}
	if t.cache {
		args = append([]any{pgx.QueryExecModeCacheStatement}, args...)
	}
	_, err = t.sql.ExecContext(ctx, query, args...)
	return err
}

type messenger struct {
	name     string
	dialects []string
	most     int // events per second it is worth measuring at
	start    func(ctx context.Context, db *database, done func(seq int)) (courier, error)
}

const (
	limitWake     = "hand-written limit, wake-up and claim"
	engineDefault = "bluecone, defaults"
)

func messengers() []messenger {
	return []messenger{
		{limitWake, all, 1500, limitCourier},
		{engineDefault, all, 1500, engineCourier},
		{"watermill-sql, poll 5 ms", servers, 1500, watermillCourier(5 * time.Millisecond)},
		{"watermill-sql, defaults", servers, 200, watermillCourier(time.Second)},
		{"River, poll 2 ms, exactly once", postgres, 200, riverCourier(time.Millisecond, 2*time.Millisecond)},
		{"River, defaults, exactly once", postgres, 200, riverCourier(0, 0)},
	}
}

// latencies runs W2 at every rate.
func latencies(ctx context.Context, o options, m *machine, rs *results) error {
	for range o.runs {
		for _, rate := range o.rates {
			for _, c := range messengers() {
				if !slices.Contains(c.dialects, m.dialect) || !o.wanted(c.name) || rate > c.most {
					continue
				}
				l, err := oneLatency(ctx, m, c, rate, o.length, nil)
				if err != nil {
					return fmt.Errorf("W2 %s at %d/s: %w", c.name, rate, err)
				}
				l.add(rs, "W2", m.dialect, fmt.Sprintf("%s, %d/s", c.name, rate))
				if o.verbose {
					progress("         processor time per event: server %v, client %v", l.server, l.client)
				}
			}
		}
	}
	return nil
}

// latency is the time from a producer's commit to the handler's.
type latency struct {
	p50, p95, p99  float64       // ms
	server, client time.Duration // of the processor, per event
}

func (l latency) add(rs *results, workload, dialect, name string) {
	rs.add(workload, dialect, name+", p50", "ms", l.p50)
	rs.add(workload, dialect, name+", p95", "ms", l.p95)
	rs.add(workload, dialect, name+", p99", "ms", l.p99)
}

func percentiles(v []time.Duration) latency {
	slices.Sort(v)
	at := func(p float64) float64 {
		if len(v) == 0 {
			return 0
		}
		return float64(v[min(int(p*float64(len(v))), len(v)-1)].Microseconds()) / 1000
	}
	return latency{p50: at(0.50), p95: at(0.95), p99: at(0.99)}
}

func oneLatency(ctx context.Context, m *machine, c messenger, rate int, length time.Duration,
	before func(context.Context, *database) error,
) (latency, error) {
	db, err := m.fresh(ctx)
	if err != nil {
		return latency{}, err
	}
	defer db.close()
	if err := db.effects(ctx); err != nil {
		return latency{}, err
	}
	n := int(length.Seconds() * float64(rate))
	times := newStopwatch(n)
	courier, err := c.start(ctx, db, times.handled)
	if err != nil {
		return latency{}, err
	}
	if before != nil {
		if err := errors.Join(before(ctx, db), db.settleDown(ctx)); err != nil {
			return latency{}, errors.Join(err, courier.stop())
		}
	}
	stop := func() {}
	if before == nil { // or else there is something to know about the tables already
		stop = db.analyze(ctx)
	}
	serverBefore, selfBefore := cpu()
	err = times.produce(ctx, db, courier, rate)
	if err == nil {
		err = times.wait(ctx, 20*time.Second)
	}
	server, self := cpu()
	stop()
	if err := errors.Join(err, courier.stop()); err != nil {
		return latency{}, err
	}
	if err := db.check(ctx, n, false); err != nil && !strings.HasPrefix(c.name, "watermill") { // it loses events: see docs/performance.md
		return latency{}, err
	}
	l := percentiles(times.all(rate))
	l.server, l.client = (server-serverBefore)/time.Duration(n), (self-selfBefore)/time.Duration(n)
	return l, nil
}

// analyze does every second, until it is stopped, what autovacuum does once a minute: the tables are so
// young that PostgreSQL keeps the plans for empty ones, whoever asks.
func (d *database) analyze(ctx context.Context) (stop func()) {
	if d.dialect != "postgres" {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var g sync.WaitGroup
	g.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				_, _ = d.plain.ExecContext(ctx, "ANALYZE")
			case <-ctx.Done():
				return
			}
		}
	})
	return func() {
		cancel()
		g.Wait()
	}
}

// stopwatch holds when each event was committed and handled.
type stopwatch struct {
	began               time.Time
	committed, finished []atomic.Int64
	open                atomic.Int64
}

func newStopwatch(n int) *stopwatch {
	s := &stopwatch{began: time.Now(), committed: make([]atomic.Int64, n), finished: make([]atomic.Int64, n)}
	s.open.Store(int64(n))
	return s
}

func (s *stopwatch) handled(seq int) {
	if seq < len(s.finished) && s.finished[seq].CompareAndSwap(0, int64(time.Since(s.began))) {
		s.open.Add(-1)
	}
}

// produce saves one event every 1/rate seconds, each in a business transaction of its own.
func (s *stopwatch) produce(ctx context.Context, db *database, c courier, rate int) error {
	g, ctx := errgroup.WithContext(ctx)
	tickets := make(chan int, len(s.committed))
	for range 16 {
		g.Go(func() error {
			for seq := range tickets {
				e := paid{OrderID: fmt.Sprint(seq), Seq: seq, Filler: filler}
				err := c.transact(ctx, db, func(ctx context.Context, tx txn) error {
					if err := tx.exec(ctx, "INSERT INTO business (name) VALUES ("+db.mark(1)+")", e.OrderID); err != nil {
						return err
					}
					return c.save(ctx, tx, e)
				})
				if err != nil {
					return err
				}
				s.committed[seq].Store(int64(time.Since(s.began)))
			}
			return nil
		})
	}
	start := time.Now()
	for seq := range s.committed {
		due := start.Add(time.Duration(float64(seq) / float64(rate) * float64(time.Second)))
		select {
		case <-time.After(time.Until(due)):
		case <-ctx.Done():
		}
		tickets <- seq
	}
	close(tickets)
	return g.Wait()
}

func (c courier) transact(ctx context.Context, db *database, fn func(ctx context.Context, tx txn) error) error {
	if c.run != nil {
		return c.run(ctx, fn)
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := fn(ctx, txn{sql: tx}); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

func (s *stopwatch) wait(ctx context.Context, atMost time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	if until(ctx, func() bool { return s.open.Load() <= 0 }) != nil {
		progress("         %d of %d events were not handled after %v", s.open.Load(), len(s.finished), atMost)
	}
	return nil
}

// all are the latencies, without the first second's.
func (s *stopwatch) all(rate int) []time.Duration {
	var out []time.Duration
	for seq := min(rate, len(s.committed)/4); seq < len(s.committed); seq++ {
		if h := s.finished[seq].Load(); h > 0 {
			out = append(out, max(time.Duration(h-s.committed[seq].Load()), 0))
		}
	}
	return out
}

// engineCourier is bluecone with its default settings and the user's plain transactions.
func engineCourier(ctx context.Context, db *database, done func(int)) (courier, error) {
	e, err := newEngine(ctx, db)
	if err != nil {
		return courier{}, err
	}
	e.listen(0, done, nil)
	return e.courier(ctx)
}

// listen registers a consumer that writes one effect and tells when it has committed.
func (e *engine) listen(consumer int, done func(seq int), before func() error) {
	bus.On(e.bus.Consumer(fmt.Sprintf("Consumer%d", consumer), bus.ConsumerConfig{}),
		func(ctx context.Context, tx bunTx, m bus.Message[paid]) error {
			if before != nil {
				if err := before(); err != nil {
					return err
				}
			}
			if err := e.commits.note(tx, m.Payload.Seq, done); err != nil {
				return err
			}
			return e.effect(ctx, tx, consumer, m.Payload)
		})
}

// courier starts a publisher.
func (e *engine) courier(ctx context.Context) (courier, error) {
	p, err := outbox.NewPublisher(e.ob, e.bus, outbox.PublisherConfig{})
	if err != nil {
		return courier{}, err
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- p.Run(running) }()
	c := e.saver()
	c.stop = func() error {
		stop()
		return <-ended
	}
	return c, nil
}

type txKey struct{}

// limitCourier wakes a worker after the commit; the worker claims and delivers.
func limitCourier(ctx context.Context, db *database, done func(int)) (courier, error) {
	l := &limit{db: db, tables: slim(db), workers: 1, batch: 100}
	if err := l.tables.prepare(ctx, 0); err != nil {
		return courier{}, err
	}
	l.committed = func(rows []claimed) {
		for _, r := range rows {
			done(r.event.Seq)
		}
	}
	ctx, stop := context.WithCancel(ctx)
	wake := make(chan struct{}, 1)
	var g sync.WaitGroup
	var failed error
	g.Go(func() {
		for {
			select {
			case <-wake:
			case <-ctx.Done():
				return
			}
			for {
				n, err := l.cycle(ctx, 1)
				if err != nil && ctx.Err() == nil {
					failed = err
				}
				if err != nil || n < l.batch {
					break
				}
			}
		}
	})
	c := courier{
		save: l.tables.save,
		stop: func() error {
			stop()
			g.Wait()
			return failed
		},
	}
	c.run = func(ctx context.Context, fn func(ctx context.Context, tx txn) error) error {
		plain := c
		plain.run = nil
		err := plain.transact(ctx, db, fn)
		select {
		case wake <- struct{}{}:
		default:
		}
		return err
	}
	return c, nil
}
