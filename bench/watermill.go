package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/uptrace/bun/dialect/pgdialect"
	"github.com/uptrace/bun/schema"
	"golang.org/x/sync/errgroup"
)

const topic = "orders"

// water is watermill-sql as an outbox: one consumer group per consumer, effects in the
// subscriber's own transaction, on PostgreSQL with its faster driver and larger batches.
type water struct {
	db    *database
	pool  wsql.Beginner
	close func()
	poll  time.Duration

	asText bool // handlers write their values into the text, as bun does
}

func newWater(ctx context.Context, db *database, poll time.Duration) (*water, error) {
	w := &water{db: db, pool: wsql.BeginnerFromStdSQL(db.DB), close: func() {}, poll: poll}
	if db.dialect == "postgres" {
		cfg, err := pgxpool.ParseConfig(db.url.String())
		if err != nil {
			return nil, err
		}
		cfg.MaxConns = poolSize
		pool, err := pgxpool.NewWithConfig(ctx, cfg)
		if err != nil {
			return nil, err
		}
		w.pool, w.close = wsql.BeginnerFromPgx(pool), pool.Close
	}
	return w, nil
}

func (w *water) schema() wsql.SchemaAdapter {
	if w.db.dialect == "postgres" {
		return wsql.DefaultPostgreSQLSchema{SubscribeBatchSize: 1000}
	}
	return wsql.DefaultMySQLSchema{SubscribeBatchSize: 100}
}

func (w *water) offsets() wsql.OffsetsAdapter {
	if w.db.dialect == "postgres" {
		return wsql.DefaultPostgreSQLOffsetsAdapter{}
	}
	return wsql.DefaultMySQLOffsetsAdapter{}
}

func messageOf(e paid) (*message.Message, error) {
	payload, err := json.Marshal(e)
	return message.NewMessage(watermill.NewUUID(), payload), err
}

func (w *water) fill(n int) error {
	p, err := wsql.NewPublisher(w.pool, wsql.PublisherConfig{SchemaAdapter: w.schema(), AutoInitializeSchema: true}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	for i := 0; i < n; {
		var batch []*message.Message
		for ; i < n && len(batch) < 500; i++ {
			m, err := messageOf(event(i, n))
			if err != nil {
				return err
			}
			batch = append(batch, m)
		}
		if err := p.Publish(topic, batch...); err != nil {
			return err
		}
	}
	return nil
}

// subscribe calls handled after the effect of each message, before watermill commits it.
func (w *water) subscribe(ctx context.Context, consumer int, handled func(paid)) (*wsql.Subscriber, <-chan error, error) {
	s, err := wsql.NewSubscriber(w.pool, wsql.SubscriberConfig{
		ConsumerGroup: "group" + strconv.Itoa(consumer), PollInterval: w.poll,
		SchemaAdapter: w.schema(), OffsetsAdapter: w.offsets(), InitializeSchema: true,
	}, watermill.NopLogger{})
	if err != nil {
		return nil, nil, err
	}
	messages, err := s.Subscribe(ctx, topic)
	if err != nil {
		return nil, nil, err
	}
	failed := make(chan error, 1)
	go func() {
		for m := range messages {
			if err := w.handle(m, consumer, handled); err != nil {
				failed <- err
				return
			}
		}
	}()
	return s, failed, nil
}

func (w *water) handle(m *message.Message, consumer int, handled func(paid)) error {
	var e paid
	if err := json.Unmarshal(m.Payload, &e); err != nil {
		return err
	}
	tx, ok := wsql.TxFromContext(m.Context())
	if !ok {
		return errors.New("watermill gave no transaction")
	}
	query, args := "INSERT INTO effect (consumer, agg, seq) VALUES "+w.db.tuples(1, 3), []any{consumer, e.OrderID, e.Seq}
	if w.asText {
		query = schema.NewQueryGen(pgdialect.New()).FormatQuery("INSERT INTO effect (consumer, agg, seq) VALUES (?, ?, ?)", args...)
		args = nil
	}
	if _, err := tx.ExecContext(m.Context(), query, args...); err != nil {
		return err
	}
	m.Ack()
	handled(e)
	return nil
}

// watermillDrain is watermill in W1. On PostgreSQL pgx prepares the statements of its handlers, unless they are text.
func watermillDrain(asText bool) preparation {
	return func(ctx context.Context, db *database, n int) (func(context.Context) error, error) {
		w, err := newWater(ctx, db, 5*time.Millisecond)
		if err != nil {
			return nil, err
		}
		w.asText = asText
		return func(ctx context.Context) error {
			defer w.close()
			g, ctx := errgroup.WithContext(ctx)
			for c := range consumers {
				g.Go(func() error { return w.drain(ctx, c, n) })
			}
			return g.Wait()
		}, w.fill(n)
	}
}

// drain handles n messages for a consumer.
func (w *water) drain(ctx context.Context, consumer, n int) error {
	var count atomic.Int64
	all := make(chan struct{})
	s, failed, err := w.subscribe(ctx, consumer, func(paid) {
		if count.Add(1) == int64(n) {
			close(all)
		}
	})
	if err != nil {
		return err
	}
	defer s.Close()
	select {
	case <-all: // its commit is still to come
		return w.db.reach(ctx, "SELECT COUNT(*) FROM effect WHERE consumer = "+strconv.Itoa(consumer), n)
	case err := <-failed:
		return fmt.Errorf("watermill handler: %w", err)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// watermillCourier is watermill in W2. It tells that a message was handled before it commits, so
// its latencies are flattered.
func watermillCourier(poll time.Duration) func(context.Context, *database, func(int)) (courier, error) {
	return func(ctx context.Context, db *database, done func(int)) (courier, error) {
		w, err := newWater(ctx, db, poll)
		if err != nil {
			return courier{}, err
		}
		s, _, err := w.subscribe(ctx, 0, func(e paid) { done(e.Seq) })
		if err != nil {
			return courier{}, err
		}
		save := func(ctx context.Context, tx txn, e paid) error {
			p, err := wsql.NewPublisher(wsql.TxFromStdSQL(tx.sql), wsql.PublisherConfig{SchemaAdapter: w.schema()}, watermill.NopLogger{})
			if err != nil {
				return err
			}
			m, err := messageOf(e)
			if err != nil {
				return err
			}
			return p.Publish(topic, m)
		}
		return courier{save: save, stop: func() error {
			err := s.Close()
			w.close()
			return err
		}}, nil
	}
}
