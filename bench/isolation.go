package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/bluecone-go/bluecone/outbox"
)

// troubles are what one of three consumers suffers from in W6.
var troubles = []string{"undisturbed", "one slow", "one failing", "one paused"} //nolint:gochecknoglobals // a constant

// isolations runs W6: the rate and the latency of two consumers while a third is in trouble.
func isolations(ctx context.Context, o options, m *machine, rs *results) error {
	for range o.runs {
		for _, trouble := range troubles {
			if m.dialect == "sqlite" && trouble == "one slow" {
				continue // a handler that is slow inside the only writer's transaction stops everybody
			}
			if err := oneIsolation(ctx, o, m, rs, trouble); err != nil {
				return fmt.Errorf("W6 %s: %w", trouble, err)
			}
		}
	}
	return nil
}

func oneIsolation(ctx context.Context, o options, m *machine, rs *results, trouble string) error {
	n := o.events / 2
	rate, err := twoOfThree(ctx, m, trouble, n, func(ctx context.Context, e *engine, _ []*stopwatch) error { return e.fill(ctx, n) },
		func(context.Context, *engine, courier, []*stopwatch) error { return nil })
	if err != nil {
		return err
	}
	rs.add("W6", m.dialect, trouble+", drain of the others", "events/s", float64(n)/rate.took.Seconds())
	const perSecond = 200
	n = int(o.length.Seconds() * perSecond)
	paced, err := twoOfThree(ctx, m, trouble, n, func(context.Context, *engine, []*stopwatch) error { return nil },
		func(ctx context.Context, e *engine, c courier, times []*stopwatch) error {
			err := times[0].produce(ctx, e.db, c, perSecond)
			for i := range times[0].committed {
				times[1].committed[i].Store(times[0].committed[i].Load())
			}
			return err
		})
	if err != nil {
		return err
	}
	percentiles(append(paced.times[0].all(perSecond), paced.times[1].all(perSecond)...)).add(rs, "W6", m.dialect,
		trouble+", the others at 200/s")
	return nil
}

type isolated struct {
	took  time.Duration
	times []*stopwatch
}

// twoOfThree measures consumers 0 and 1 while consumer 2 is in trouble.
func twoOfThree(ctx context.Context, m *machine, trouble string, n int, prepare func(context.Context, *engine, []*stopwatch) error,
	produce func(context.Context, *engine, courier, []*stopwatch) error,
) (isolated, error) {
	db, err := m.fresh(ctx)
	if err != nil {
		return isolated{}, err
	}
	defer db.close()
	if err := db.effects(ctx); err != nil {
		return isolated{}, err
	}
	e, err := newEngine(ctx, db)
	if err != nil {
		return isolated{}, err
	}
	times := []*stopwatch{newStopwatch(n), newStopwatch(n)}
	times[1].began = times[0].began
	var open atomic.Int64 // deliveries to the two, until they have committed
	open.Store(int64(2 * n))
	for i, t := range times {
		e.listen(i, func(seq int) { t.handled(seq); open.Add(-1) }, nil)
	}
	e.listen(2, func(int) {}, suffer(trouble))
	if err := errors.Join(prepare(ctx, e, times), db.settleDown(ctx)); err != nil {
		return isolated{}, err
	}
	began := time.Now()
	c, err := e.courier(ctx)
	if err != nil {
		return isolated{}, err
	}
	if trouble == "one paused" {
		if err := e.pause(ctx, "Consumer2"); err != nil {
			return isolated{}, err
		}
	}
	err = produce(ctx, e, c, times)
	if err == nil {
		err = until(ctx, func() bool { return open.Load() <= 0 })
	}
	took := time.Since(began)
	if err := errors.Join(err, c.stop()); err != nil {
		return isolated{}, err
	}
	return isolated{took: took, times: times}, db.checkFirst(ctx, 2, 2*n, true)
}

func suffer(trouble string) func() error {
	switch trouble {
	case "one slow":
		return func() error {
			time.Sleep(20 * time.Millisecond)
			return nil
		}
	case "one failing":
		return func() error { return errors.New("it always fails") }
	}
	return nil
}

// pause waits until the publisher has registered the consumer.
func (e *engine) pause(ctx context.Context, consumer string) error {
	if err := e.db.reach(ctx, "SELECT COUNT(*) FROM bc_consumer WHERE name = '"+consumer+"'", 1); err != nil {
		return err
	}
	return e.ob.Pause(ctx, outbox.Operation{Actor: "bench", Reason: "W6"}, consumer, 0)
}
