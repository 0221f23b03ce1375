package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	produceNone   = "business row alone"
	produceHand   = "and an event, by hand"
	produceFull   = "and an event, by hand into bluecone's table"
	produceEngine = "and an event, bluecone"
)

// produces runs W3: how many business transactions a second 1, 4 and 16 writers commit.
func produces(ctx context.Context, o options, m *machine, rs *results) error {
	for range o.runs {
		for _, writers := range []int{1, 4, 16} {
			for _, name := range []string{produceNone, produceHand, produceFull, produceEngine} {
				rate, err := oneProduce(ctx, o, m, name, writers)
				if err != nil {
					return fmt.Errorf("W3 %s: %w", name, err)
				}
				rs.add("W3", m.dialect, fmt.Sprintf("%s, %d writers", name, writers), "commits/s", rate)
			}
		}
	}
	return nil
}

func oneProduce(ctx context.Context, o options, m *machine, name string, writers int) (float64, error) {
	db, err := m.fresh(ctx)
	if err != nil {
		return 0, err
	}
	defer db.close()
	if err := db.effects(ctx); err != nil {
		return 0, err
	}
	c, err := producer(ctx, db, name)
	if err != nil {
		return 0, err
	}
	var count atomic.Int64
	g, writing := errgroup.WithContext(ctx)
	serverBefore, selfBefore := cpu()
	began := time.Now()
	for w := range writers {
		g.Go(func() error {
			for i := 0; time.Since(began) < o.length/2; i++ {
				e := paid{OrderID: fmt.Sprintf("%d-%d", w, i), Seq: i, Filler: filler}
				err := c.transact(writing, db, func(ctx context.Context, tx txn) error {
					err := tx.exec(ctx, "INSERT INTO business (name) VALUES ("+db.mark(1)+")", e.OrderID)
					if err != nil {
						return err
					}
					return c.save(ctx, tx, e)
				})
				if err != nil {
					return err
				}
				count.Add(1)
			}
			return nil
		})
	}
	err = g.Wait()
	took := time.Since(began)
	if n := time.Duration(count.Load()); o.verbose && n > 0 {
		server, self := cpu()
		progress("         processor time per commit: server %v, client %v", (server-serverBefore)/n, (self-selfBefore)/n)
	}
	if err := errors.Join(err, c.stop()); err != nil {
		return 0, err
	}
	return float64(count.Load()) / took.Seconds(), db.produced(ctx, name, int(count.Load()))
}

// produced makes sure that every commit has left its rows.
func (d *database) produced(ctx context.Context, name string, commits int) error {
	written := []string{"business"}
	switch name {
	case produceHand:
		written = append(written, "lim_event")
	case produceFull, produceEngine:
		written = append(written, "bc_outbox_event")
	}
	for _, table := range written {
		n, err := d.number(ctx, "SELECT COUNT(*) FROM "+table)
		if err != nil {
			return err
		}
		if n != commits {
			return fmt.Errorf("%d rows in %s after %d commits", n, table, commits)
		}
	}
	return nil
}

func producer(ctx context.Context, db *database, name string) (courier, error) {
	nothing := func() error { return nil }
	switch name {
	case produceEngine:
		e, err := newEngine(ctx, db)
		if err != nil {
			return courier{}, err
		}
		return e.saver(), nil
	case produceHand:
		t := slim(db)
		return courier{save: t.save, stop: nothing}, t.prepare(ctx, 0)
	case produceFull:
		t := full(db)
		return courier{save: t.save, stop: nothing}, t.prepare(ctx, 0)
	}
	return courier{save: func(context.Context, txn, paid) error { return nil }, stop: nothing}, nil
}

// saver is bluecone without a publisher.
func (e *engine) saver() courier {
	return courier{
		run: func(ctx context.Context, fn func(ctx context.Context, tx txn) error) error {
			return e.bun.RunInTx(ctx, nil, func(ctx context.Context, tx bunTx) error {
				return fn(context.WithValue(ctx, txKey{}, tx), txn{sql: tx.Tx, cache: e.db.dialect == "postgres"})
			})
		},
		save: func(ctx context.Context, _ txn, p paid) error {
			return e.ob.Save(ctx, ctx.Value(txKey{}).(bunTx), p) //nolint:forcetypeassert // put there by run
		},
		stop: func() error { return nil },
	}
}
