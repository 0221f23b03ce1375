package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// riverJob is an event for one consumer: River has no fan-out.
type riverJob struct {
	Consumer int  `json:"consumer"`
	Event    paid `json:"event"`
}

func (riverJob) Kind() string { return "event" }

// riverWorker writes the effect in one transaction with the completion of the job, or by itself.
type riverWorker struct {
	river.WorkerDefaults[riverJob]
	pool *pgxpool.Pool
	once bool
	done func(paid)
}

const riverEffect = "INSERT INTO effect (consumer, agg, seq) VALUES ($1, $2, $3)"

func (w *riverWorker) Work(ctx context.Context, job *river.Job[riverJob]) error {
	a := job.Args
	if !w.once {
		_, err := w.pool.Exec(ctx, riverEffect, a.Consumer, a.Event.OrderID, a.Event.Seq)
		if err == nil {
			w.done(a.Event)
		}
		return err
	}
	err := pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, riverEffect, a.Consumer, a.Event.OrderID, a.Event.Seq); err != nil {
			return err
		}
		_, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, job)
		return err
	})
	if err == nil {
		w.done(a.Event)
	}
	return err
}

func newRiver(ctx context.Context, db *database, once bool, cooldown, poll time.Duration, done func(paid),
) (*river.Client[pgx.Tx], *pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(db.url.String())
	if err != nil {
		return nil, nil, err
	}
	cfg.MaxConns = poolSize
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, nil, err
	}
	driver := riverpgxv5.New(pool)
	migrator, err := rivermigrate.New(driver, nil)
	if err != nil {
		return nil, nil, err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return nil, nil, err
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, &riverWorker{pool: pool, once: once, done: done})
	client, err := river.NewClient(driver, &river.Config{
		Queues:  map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 500, FetchCooldown: cooldown, FetchPollInterval: poll}},
		Workers: workers, Logger: slog.New(slog.DiscardHandler),
	})
	return client, pool, err
}

func riverDrain(once bool) func(context.Context, *database, int) (func(context.Context) error, error) {
	return func(ctx context.Context, db *database, n int) (func(context.Context) error, error) {
		client, pool, err := newRiver(ctx, db, once, 2*time.Millisecond, 20*time.Millisecond, func(paid) {})
		if err != nil {
			return nil, err
		}
		for i := 0; i < n; {
			var jobs []river.InsertManyParams
			for ; i < n && len(jobs) < 1500; i++ {
				for c := range consumers {
					jobs = append(jobs, river.InsertManyParams{Args: riverJob{Consumer: c, Event: event(i, n)}})
				}
			}
			if _, err := client.InsertManyFast(ctx, jobs); err != nil {
				return nil, err
			}
		}
		return func(ctx context.Context) error {
			defer pool.Close()
			if err := client.Start(ctx); err != nil {
				return err
			}
			err := db.gathered(ctx, n*consumers)
			stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
			defer cancel()
			if stopErr := client.Stop(stopping); err == nil {
				err = stopErr
			}
			return err
		}, nil
	}
}

// riverCourier is River in W2, exactly once.
func riverCourier(cooldown, poll time.Duration) func(context.Context, *database, func(int)) (courier, error) {
	return func(ctx context.Context, db *database, done func(int)) (courier, error) {
		client, pool, err := newRiver(ctx, db, true, cooldown, poll, func(e paid) { done(e.Seq) })
		if err != nil {
			return courier{}, err
		}
		if err := client.Start(ctx); err != nil {
			return courier{}, err
		}
		save := func(ctx context.Context, tx txn, e paid) error {
			_, err := client.InsertTx(ctx, tx.pgx, riverJob{Event: e}, nil)
			return err
		}
		run := func(ctx context.Context, fn func(ctx context.Context, tx txn) error) error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return fn(ctx, txn{pgx: tx}) })
		}
		return courier{save: save, run: run, stop: func() error {
			stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
			defer cancel()
			err := client.Stop(stopping)
			pool.Close()
			return err
		}}, nil
	}
}
