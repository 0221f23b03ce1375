package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/migrations"
	"github.com/bluecone-go/bluecone/outbox"
)

// engine is bluecone with its default settings, on a fresh database.
type engine struct {
	db  *database
	bun *bun.DB
	ob  *outbox.Outbox
	bus *bus.Bus
}

var quiet = slog.New(slog.DiscardHandler)

func newEngine(ctx context.Context, db *database) (*engine, error) {
	e := &engine{db: db, bun: db.bun()}
	if err := migrations.Up(ctx, e.bun); err != nil {
		return nil, err
	}
	var err error
	e.ob, err = outbox.New(e.bun, outbox.Config{Logger: quiet})
	e.bus = bus.New(e.bun, bus.Config{Logger: quiet})
	return e, err
}

// ordinary registers consumers whose handlers insert one row each.
func (e *engine) ordinary(n int) {
	for c := range n {
		bus.On(e.bus.Consumer(fmt.Sprintf("Consumer%d", c), bus.ConsumerConfig{Concurrency: envInt("BENCH_CONC", 0), Batch: envInt("BENCH_BATCH", 0)}), func(ctx context.Context, tx bun.Tx, m bus.Message[paid]) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO effect (consumer, agg, seq) VALUES (?, ?, ?)", c, m.Payload.OrderID, m.Payload.Seq)
			return err
		})
	}
}

// batches registers consumers whose handlers insert the rows of many events at once.
func (e *engine) batches(n int) {
	for c := range n {
		bus.OnBatch(e.bus.Consumer(fmt.Sprintf("Consumer%d", c), bus.ConsumerConfig{Batch: 500, Concurrency: envInt("BENCH_CONC", 0)}), func(ctx context.Context, tx bun.Tx, ms []bus.Message[paid]) error {
			query := make([]byte, 0, 64+16*len(ms))
			query = append(query, "INSERT INTO effect (consumer, agg, seq) VALUES "...)
			args := make([]any, 0, 3*len(ms))
			for i, m := range ms {
				if i > 0 {
					query = append(query, ',')
				}
				query = append(query, "(?,?,?)"...)
				args = append(args, c, m.Payload.OrderID, m.Payload.Seq)
			}
			_, err := tx.ExecContext(ctx, string(query), args...)
			return err
		})
	}
}

// noop registers one consumer that does nothing.
func (e *engine) noop(int) {
	bus.On(e.bus.Consumer("Noop", bus.ConsumerConfig{Batch: 500}), func(context.Context, bun.Tx, bus.Message[paid]) error { return nil })
}

// fill saves n events, many in a transaction.
func (e *engine) fill(ctx context.Context, n int) error {
	const each = 500
	for i := 0; i < n; i += each {
		events := make([]bus.Event, 0, each)
		for j := i; j < min(i+each, n); j++ {
			events = append(events, event(j, n))
		}
		if err := e.bun.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error { return e.ob.Save(ctx, tx, events...) }); err != nil {
			return err
		}
	}
	return nil
}

// drain runs a publisher until nothing is open.
func (e *engine) drain(ctx context.Context, cfg outbox.PublisherConfig) error {
	defer watchStatements(e.bun)()
	p, err := outbox.NewPublisher(e.ob, e.bus, cfg)
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- p.Run(running) }()
	err = e.idle(ctx)
	stop()
	if late, e := e.db.number(ctx, "SELECT COUNT(*) FROM bc_event_consume_log WHERE lock_version > 0"); e == nil && late > 0 {
		progress("%d deliveries went through the consume log", late)
	}
	return errors.Join(err, <-ended)
}

// idle waits until nothing is open.
func (e *engine) idle(ctx context.Context) error {
	for tick := time.NewTicker(10 * time.Millisecond); ; {
		n, err := e.db.number(ctx, "SELECT COUNT(*) FROM (SELECT 1 FROM bc_outbox_event WHERE status IN ('NEW', 'SCHEDULED', 'DISPATCHING', 'FAILED') LIMIT 1) t")
		if err != nil || n == 0 {
			tick.Stop()
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
