package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/bluecone-go/bluecone/outbox"
)

// drainer is a contender of W1: it drains a backlog saved before.
type drainer struct {
	name      string
	dialects  []string
	share     float64 // of the events; slow ones get fewer
	consumers int     // 0: no effects to check
	ordered   bool
	prepare   preparation
}

var (
	all      = []string{"mysql", "postgres", "sqlite"} //nolint:gochecknoglobals // a constant
	servers  = []string{"mysql", "postgres"}           //nolint:gochecknoglobals // a constant
	postgres = []string{"postgres"}                    //nolint:gochecknoglobals // a constant
)

// The names of contenders that goals are about.
const (
	limitOrdinary    = "hand-written limit, ordinary handlers"
	limitBatch       = "hand-written limit, batch handlers"
	fullOrdinary     = "by hand on bluecone's tables, ordinary handlers"
	fullBatch        = "by hand on bluecone's tables, batch handlers"
	engineOrdinary   = "bluecone, ordinary handlers, OnSQL"
	engineOrdinaryOn = "bluecone, ordinary handlers, On with bun"
	engineBatch      = "bluecone, batch handlers, OnSQLBatch"
	engineBatchOn    = "bluecone, batch handlers, OnBatch with bun"
	engineNoop       = "bluecone, one no-op consumer"
	watermillTuned   = "watermill-sql, tuned"
	watermillText    = "watermill-sql, tuned, statements as text"
	riverExactlyOnce = "River, exactly once"
	riverAtLeastOnce = "River, at least once"
)

func drainers() []drainer {
	return []drainer{
		{name: limitOrdinary, dialects: all, share: 1, consumers: consumers, prepare: limits(slim, 8, 100, false)},
		{name: fullOrdinary, dialects: all, share: 1, consumers: consumers, prepare: limits(full, 8, 100, false)},
		{
			name: engineOrdinary, dialects: all, share: 1, consumers: consumers, ordered: true,
			prepare: engines((*engine).ordinarySQL, outbox.PublisherConfig{}),
		},
		{
			name: engineOrdinaryOn, dialects: all, share: 1, consumers: consumers, ordered: true,
			prepare: engines((*engine).ordinary, outbox.PublisherConfig{}),
		},
		{name: limitBatch, dialects: all, share: 1, consumers: consumers, prepare: limits(slim, 4, 500, true)},
		{name: fullBatch, dialects: all, share: 1, consumers: consumers, prepare: limits(full, 4, 500, true)},
		{
			name: engineBatch, dialects: all, share: 1, consumers: consumers, ordered: true,
			prepare: engines((*engine).batchesSQL, outbox.PublisherConfig{BatchSize: 500}),
		},
		{
			name: engineBatchOn, dialects: all, share: 1, consumers: consumers, ordered: true,
			prepare: engines((*engine).batches, outbox.PublisherConfig{BatchSize: 500}),
		},
		{
			name: "bluecone, batch handlers, SENT rows deleted", dialects: all, share: 1, consumers: consumers, ordered: true,
			prepare: deleting((*engine).batchesSQL, outbox.PublisherConfig{BatchSize: 500}),
		},
		{name: engineNoop, dialects: all, share: 1, prepare: engines((*engine).noop, outbox.PublisherConfig{BatchSize: 500})},
		{name: watermillTuned, dialects: servers, share: 0.5, consumers: consumers, ordered: true, prepare: watermillDrain(false)},
		{name: watermillText, dialects: postgres, share: 0.5, consumers: consumers, ordered: true, prepare: watermillDrain(true)},
		{name: riverExactlyOnce, dialects: postgres, share: 0.04, consumers: consumers, prepare: riverDrain(true)},
		{name: riverAtLeastOnce, dialects: postgres, share: 0.1, consumers: consumers, prepare: riverDrain(false)},
		{
			name: "the original's loop, without its waiting", dialects: servers, share: 0.03, consumers: consumers, ordered: true,
			prepare: originalDrain,
		},
	}
}

// preparation makes what a drain of n events needs, and returns the drain.
type preparation func(ctx context.Context, db *database, n int) (drain func(ctx context.Context) error, err error)

func limits(of func(*database) tables, workers, batch int, multiRow bool) preparation {
	return func(ctx context.Context, db *database, n int) (func(context.Context) error, error) {
		l := &limit{db: db, tables: of(db), workers: workers, batch: batch, multiRow: multiRow}
		if db.dialect == "sqlite" {
			l.workers = 1
		}
		return l.drain, l.tables.prepare(ctx, n)
	}
}

func engines(register func(*engine, int), cfg outbox.PublisherConfig) preparation {
	return enginesOf(register, outbox.Config{Logger: quiet}, cfg)
}

func deleting(register func(*engine, int), cfg outbox.PublisherConfig) preparation {
	return enginesOf(register, outbox.Config{Logger: quiet, DeleteSent: true}, cfg)
}

func enginesOf(register func(*engine, int), ob outbox.Config, cfg outbox.PublisherConfig) preparation {
	return func(ctx context.Context, db *database, n int) (func(context.Context) error, error) {
		e, err := newEngineOf(ctx, db, ob)
		if err != nil {
			return nil, err
		}
		register(e, consumers)
		return func(ctx context.Context) error { return e.drain(ctx, cfg) }, e.fill(ctx, n)
	}
}

// drains runs W1, all contenders in turn, o.runs times.
func drains(ctx context.Context, o options, m *machine, rs *results) error {
	for range o.runs {
		for _, c := range drainers() {
			if !slices.Contains(c.dialects, m.dialect) || !o.wanted(c.name) {
				continue
			}
			n := max(int(float64(o.events)*c.share), 10*perAggregate)
			d, err := oneDrain(ctx, o, m, c, n)
			if err != nil {
				return fmt.Errorf("W1 %s: %w", c.name, err)
			}
			rs.add("W1", m.dialect, c.name, "events/s", float64(n)/d.took.Seconds())
			if strings.HasPrefix(c.name, "bluecone") {
				rs.add(beside, m.dialect, c.name+", memory above idle", "MiB", float64(d.memory)/(1<<20))
				rs.add(beside, m.dialect, c.name+", allocations", "per delivery", float64(d.allocations)/float64(n*max(c.consumers, 1)))
			}
		}
	}
	return nil
}

// drained is what one drain took.
type drained struct {
	took        time.Duration
	memory      uint64 // the most heap in use, above what was in use before
	allocations uint64
}

func oneDrain(ctx context.Context, o options, m *machine, c drainer, n int) (drained, error) {
	db, err := m.fresh(ctx)
	if err != nil {
		return drained{}, err
	}
	defer db.close()
	if err := db.effects(ctx); err != nil {
		return drained{}, err
	}
	drain, err := c.prepare(ctx, db, n)
	if err != nil {
		return drained{}, err
	}
	if err := db.settleDown(ctx); err != nil {
		return drained{}, err
	}
	if o.profile != "" && strings.HasPrefix(c.name, "bluecone") {
		f, err := os.Create(o.profile)
		if err != nil {
			return drained{}, err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return drained{}, err
		}
		defer pprof.StopCPUProfile()
	}
	memory := watchMemory()
	serverBefore, selfBefore := cpu()
	began := time.Now()
	if err := drain(ctx); err != nil {
		return drained{}, err
	}
	d := drained{took: time.Since(began)}
	server, self := cpu()
	d.memory, d.allocations = memory()
	if o.verbose {
		progress("         processor time per event: server %v, client %v", (server-serverBefore)/time.Duration(n),
			(self-selfBefore)/time.Duration(n))
	}
	if c.consumers == 0 {
		return d, nil
	}
	return d, db.check(ctx, n*c.consumers, c.ordered)
}

// watchMemory samples the heap until the result is called.
func watchMemory() func() (above, allocations uint64) {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	before, mallocs := m.HeapInuse, m.Mallocs
	var most atomic.Uint64
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				most.Store(max(most.Load(), m.HeapInuse))
			}
		}
	}()
	return func() (uint64, uint64) {
		close(stop)
		<-done
		runtime.ReadMemStats(&m)
		return max(most.Load(), before) - before, m.Mallocs - mallocs
	}
}
