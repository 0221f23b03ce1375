package main

import (
	"context"
	"fmt"
	"os"
	"runtime/pprof"
	"slices"
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
	prepare   func(ctx context.Context, db *database, n int) (drain func(ctx context.Context) error, err error)
}

var all = []string{"mysql", "postgres", "sqlite"} //nolint:gochecknoglobals // a constant

func drainers() []drainer {
	list := []drainer{
		{name: "limit, ordinary handlers", dialects: all, share: 1, consumers: consumers, prepare: limits(8, 100, false)},
		{name: "bluecone, ordinary handlers", dialects: all, share: 1, consumers: consumers, ordered: true, prepare: engines((*engine).ordinary, outbox.PublisherConfig{})},
		{name: "limit, batch handlers", dialects: all, share: 1, consumers: consumers, prepare: limits(4, 500, true)},
		{name: "bluecone, batch handlers", dialects: all, share: 1, consumers: consumers, ordered: true, prepare: engines((*engine).batches, outbox.PublisherConfig{BatchSize: 500})},
		{name: "bluecone, no-op, one consumer", dialects: all, share: 1, prepare: engines((*engine).noop, outbox.PublisherConfig{BatchSize: 500})},
	}
	return append(list, peers()...)
}

func limits(workers, batch int, multiRow bool) func(context.Context, *database, int) (func(context.Context) error, error) {
	return func(ctx context.Context, db *database, n int) (func(context.Context) error, error) {
		l := &limit{db: db, workers: workers, batch: batch, multiRow: multiRow}
		if db.dialect == "sqlite" {
			l.workers = 1
		}
		return l.drain, l.prepare(ctx, n)
	}
}

func engines(register func(*engine, int), cfg outbox.PublisherConfig) func(context.Context, *database, int) (func(context.Context) error, error) {
	return func(ctx context.Context, db *database, n int) (func(context.Context) error, error) {
		e, err := newEngine(ctx, db)
		if err != nil {
			return nil, err
		}
		register(e, consumers)
		return func(ctx context.Context) error { return e.drain(ctx, cfg) }, e.fill(ctx, n)
	}
}

// drains runs W1, all contenders in turn, o.runs times.
func drains(ctx context.Context, o options, m *machine) error {
	rates := make(map[string][]float64)
	var names []string
	for run := range o.runs {
		for _, c := range drainers() {
			if !slices.Contains(c.dialects, m.dialect) || !o.wanted(c.name) {
				continue
			}
			n := max(int(float64(o.events)*c.share), perAggregate)
			took, err := oneDrain(ctx, o, m, c, n)
			if err != nil {
				return fmt.Errorf("W1 %s: %w", c.name, err)
			}
			if run == 0 {
				names = append(names, c.name)
			}
			rates[c.name] = append(rates[c.name], float64(n)/took.Seconds())
			progress("%s W1 run %d: %-34s %9.0f events/s", m.dialect, run+1, c.name, float64(n)/took.Seconds())
		}
	}
	printRates(m.dialect+" W1: drain, events/s", names, rates)
	return nil
}

func oneDrain(ctx context.Context, o options, m *machine, c drainer, n int) (time.Duration, error) {
	db, err := m.fresh(ctx)
	if err != nil {
		return 0, err
	}
	defer db.close()
	if err := db.effects(ctx); err != nil {
		return 0, err
	}
	drain, err := c.prepare(ctx, db, n)
	if err != nil {
		return 0, err
	}
	if o.profile != "" && len(c.name) > 8 && c.name[:8] == "bluecone" {
		f, err := os.Create(o.profile)
		if err != nil {
			return 0, err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return 0, err
		}
		defer pprof.StopCPUProfile()
	}
	serverBefore, selfBefore := cpu()
	began := time.Now()
	if err := drain(ctx); err != nil {
		return 0, err
	}
	took := time.Since(began)
	server, self := cpu()
	progress("    processor time per event: server %v, client %v", (server-serverBefore)/time.Duration(n), (self-selfBefore)/time.Duration(n))
	if c.consumers == 0 {
		return took, nil
	}
	return took, db.check(ctx, n*c.consumers, c.ordered)
}
