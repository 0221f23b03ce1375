package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
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

	calls atomic.Int64 // events that handlers have seen
	saved int64        // events there are, times consumers

	commits *commits
}

type bunTx = bun.Tx

var quiet = slog.New(slog.DiscardHandler)

func newEngine(ctx context.Context, db *database) (*engine, error) {
	return newEngineOf(ctx, db, outbox.Config{Logger: quiet})
}

func newEngineOf(ctx context.Context, db *database, cfg outbox.Config) (*engine, error) {
	e := &engine{db: db, commits: new(commits)}
	e.bun = db.bun().WithQueryHook(e.commits)
	if err := migrations.Up(ctx, e.bun); err != nil {
		return nil, err
	}
	var err error
	e.ob, err = outbox.New(e.bun, cfg)
	e.bus = bus.New(e.bun, bus.Config{Logger: quiet})
	return e, err
}

// ordinary registers consumers whose handlers insert one row each, with bun: on PostgreSQL text with the values in it, which the
// server parses and plans each time.
func (e *engine) ordinary(n int) {
	for c := range n {
		bus.On(e.consumer(c, 0), func(ctx context.Context, tx bun.Tx, m bus.Message[paid]) error {
			e.calls.Add(1)
			_, err := tx.ExecContext(ctx, "INSERT INTO effect (consumer, agg, seq) VALUES (?, ?, ?)", c, m.Payload.OrderID, m.Payload.Seq)
			return err
		})
	}
}

// ordinarySQL registers the same handlers with [bus.OnSQL]: on PostgreSQL the driver prepares the statement once for each connection.
func (e *engine) ordinarySQL(n int) {
	query := "INSERT INTO effect (consumer, agg, seq) VALUES " + e.db.tuples(1, 3)
	for c := range n {
		bus.OnSQL(e.consumer(c, 0), func(ctx context.Context, tx bus.Tx, m bus.Message[paid]) error {
			e.calls.Add(1)
			_, err := tx.ExecContext(ctx, query, c, m.Payload.OrderID, m.Payload.Seq)
			return err
		})
	}
}

// batches registers consumers whose handlers insert the rows of many events at once, with bun.
func (e *engine) batches(n int) {
	for c := range n {
		bus.OnBatch(e.consumer(c, 500), func(ctx context.Context, tx bun.Tx, ms []bus.Message[paid]) error {
			e.calls.Add(int64(len(ms)))
			query := "INSERT INTO effect (consumer, agg, seq) VALUES (?, ?, ?)" + strings.Repeat(", (?, ?, ?)", len(ms)-1)
			_, err := tx.ExecContext(ctx, query, values(c, ms)...)
			return err
		})
	}
}

// batchesSQL registers the same handlers with [bus.OnSQLBatch]. On PostgreSQL they hand over arrays, so that the statement has the
// same text for any number of rows.
func (e *engine) batchesSQL(n int) {
	for c := range n {
		bus.OnSQLBatch(e.consumer(c, 500), func(ctx context.Context, tx bus.Tx, ms []bus.Message[paid]) (err error) {
			e.calls.Add(int64(len(ms)))
			if e.db.dialect == "postgres" {
				aggregates, seqs := make([]string, len(ms)), make([]int32, len(ms))
				for i, m := range ms {
					aggregates[i], seqs[i] = m.Payload.OrderID, int32(m.Payload.Seq) //nolint:gosec // at most a number of events
				}
				_, err = tx.ExecContext(ctx, "INSERT INTO effect (consumer, agg, seq) SELECT $1::smallint, unnest($2::text[]), unnest($3::int[])",
					c, aggregates, seqs)
				return err
			}
			_, err = tx.ExecContext(ctx, "INSERT INTO effect (consumer, agg, seq) VALUES "+e.db.tuples(len(ms), 3), values(c, ms)...)
			return err
		})
	}
}

// values are those of the rows that a consumer inserts for messages.
func values(consumer int, ms []bus.Message[paid]) []any {
	args := make([]any, 0, 3*len(ms))
	for _, m := range ms {
		args = append(args, consumer, m.Payload.OrderID, m.Payload.Seq)
	}
	return args
}

// consumer is the one of this number.
func (e *engine) consumer(number, batch int) *bus.Consumer {
	return e.bus.Consumer(fmt.Sprintf("Consumer%d", number), bus.ConsumerConfig{Batch: batch})
}

// noop registers one consumer that does nothing.
func (e *engine) noop(int) {
	bus.On(e.bus.Consumer("Noop", bus.ConsumerConfig{Batch: 500}), func(context.Context, bun.Tx, bus.Message[paid]) error {
		e.calls.Add(1)
		return nil
	})
}

// effect is what a handler of W2 and W6 does, which tells by its bun.Tx when it has committed ([commits]). On PostgreSQL it lets the
// driver prepare the statement once, as [bus.OnSQL] and the hand-written limit do.
func (e *engine) effect(ctx context.Context, tx bun.Tx, consumer int, p paid) (err error) {
	if e.db.dialect == "postgres" {
		_, err = tx.Tx.ExecContext(ctx, "INSERT INTO effect (consumer, agg, seq) VALUES ($1, $2, $3)", pgx.QueryExecModeCacheStatement,
			consumer, p.OrderID, p.Seq)
		return err
	}
	_, err = tx.ExecContext(ctx, "INSERT INTO effect (consumer, agg, seq) VALUES (?, ?, ?)", consumer, p.OrderID, p.Seq)
	return err
}

// fill saves n events, many in a transaction.
func (e *engine) fill(ctx context.Context, n int) error {
	e.saved = int64(n * len(e.bus.Consumers()))
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
	p, err := outbox.NewPublisher(e.ob, e.bus, cfg)
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- p.Run(running) }()
	err = e.idle(ctx)
	stop()
	return errors.Join(err, <-ended)
}

// idle waits until nothing is open.
func (e *engine) idle(ctx context.Context) error {
	for tick := time.NewTicker(5 * time.Millisecond); ; {
		for e.calls.Load() < e.saved { // asking the database would slow it down
			select {
			case <-tick.C:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		n, err := e.db.number(ctx, "SELECT COUNT(*) FROM (SELECT 1 FROM bc_outbox_event "+
			"WHERE status IN ('NEW', 'SCHEDULED', 'DISPATCHING', 'FAILED') AND status <> 'SENT' LIMIT 1) t")
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
