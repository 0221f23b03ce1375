package bus

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/uptrace/bun"
	"go.opentelemetry.io/otel/trace"

	"github.com/bluecone-go/bluecone/internal/telemetry"
)

// errStuck is the failure of a handler that ignores its ended context. It is abandoned:
// its transaction is rolled back and its place in the lane is free again.
var errStuck = errors.New("the handler did not return after its context had ended; it was abandoned")

// handle calls the handlers of ds in a goroutine of their own, which contains panics
// and runtime.Goexit, and does not wait for one that is stuck.
func (ln *lane) handle(ctx context.Context, tx bun.Tx, ds []*delivery) (took time.Duration, err error) {
	own, err := ln.copies(ds)
	if err != nil {
		return 0, err
	}
	var at progress
	at.began.Store(time.Now().UnixNano())
	result := make(chan error, 1)
	go func() {
		err := error(&PanicError{Value: "runtime.Goexit was called"})
		defer func() {
			if v := recover(); v != nil {
				err = &PanicError{Value: v, Stack: string(debug.Stack())}
			}
			result <- err
		}()
		err = ln.callAll(ctx, tx, own, &at)
	}()
	start := time.Now()
	err = finite(ln.watch(ctx, result, &at, ds))
	took = time.Since(start)
	ln.observeTime(took / time.Duration(len(ds)))
	for i, d := range ds {
		d.payload = nil // the handler may have changed what it holds: another run asks for it again
		if !errors.Is(err, errStuck) {
			d.record, d.started = own[i].record, own[i].started
		}
	}
	if err != nil {
		err = &refusal{first: int(at.first.Load()), count: int(at.count.Load()), err: err}
	}
	return took, err
}

// maxCauses is how many errors an answer may wrap.
const maxCauses = 1000

// finite is err, or its text alone if it wraps so many that looking for a cause would not end: an error that wraps itself.
func finite(err error) error {
	if causes(err, maxCauses) > 0 {
		return err
	}
	return errors.New(err.Error())
}

// causes counts what err wraps down from left, to 0 at the least.
func causes(err error, left int) int {
	for ; err != nil && left > 0; left-- {
		switch wrapped := err.(type) { //nolint:errorlint // this is what looks inside
		case interface{ Unwrap() error }:
			err = wrapped.Unwrap()
		case interface{ Unwrap() []error }:
			for _, e := range wrapped.Unwrap() {
				left = causes(e, left)
			}
			return left
		default:
			return left
		}
	}
	return left
}

// progress is how far the calls of a batch have come.
type progress struct {
	began        atomic.Int64 // when the present one began
	first, count atomic.Int64 // the deliveries it is about
}

// refusal is the error of a call, and which deliveries of the batch it was about: the handlers have
// taken those before.
type refusal struct {
	first, count int
	err          error
}

func (r *refusal) Error() string { return r.err.Error() }
func (r *refusal) Unwrap() error { return r.err }

// copies are what the handlers get, so that one that was abandoned shares nothing with the
// next run of its delivery.
func (ln *lane) copies(ds []*delivery) ([]*delivery, error) {
	own, all, now := make([]*delivery, len(ds)), make([]delivery, len(ds)), time.Now()
	for i, d := range ds {
		if err := ln.c.decode(d); err != nil {
			return nil, err
		}
		d.record, d.started = record{}, now
		all[i] = *d
		own[i] = &all[i]
	}
	return own, nil
}

// watch waits for the result, names a slow handler while it is slow, and gives up a stuck one.
func (ln *lane) watch(ctx context.Context, result <-chan error, at *progress, ds []*delivery) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var over time.Time
	for warned := false; ; {
		select {
		case err := <-result:
			return err
		case <-tick.C:
		}
		took := time.Since(time.Unix(0, at.began.Load()))
		if ctx.Err() != nil && over.IsZero() {
			over = time.Now()
		}
		if took > ln.c.cfg.Timeout+stuckGrace || (!over.IsZero() && time.Since(over) > stuckGrace) {
			ln.l.bus.logger.ErrorContext(ctx, "handler is stuck and was abandoned", telemetry.Consumer, ln.c.name, telemetry.Took, took)
			return errStuck
		}
		if took > ln.c.cfg.Timeout/2 && !warned {
			warned = true
			ln.l.bus.logger.WarnContext(ctx, "handler is slow", telemetry.Consumer, ln.c.name, telemetry.EventID, ds[0].env.ID, telemetry.Count, len(ds), telemetry.Took, took)
		}
	}
}

// callAll calls the handler of each event, or of each run of events of one type for a batch handler.
func (ln *lane) callAll(ctx context.Context, tx bun.Tx, ds []*delivery, at *progress) error {
	for first := 0; len(ds) > 0; {
		h, n := ln.c.handlers[ds[0].env.Type], 1
		for h.batch && n < len(ds) && ds[n].env.Type == h.eventType {
			n++
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		at.began.Store(time.Now().UnixNano())
		at.first.Store(int64(first))
		at.count.Store(int64(n))
		if fault := ln.l.bus.faults.BeforeHandler; fault != nil {
			if err := fault(ln.c.name, ds[0].env.ID); err != nil {
				return err
			}
		}
		if err := ln.call(ctx, h, tx, ds[:n]); err != nil {
			return err
		}
		ds, first = ds[n:], first+n
	}
	return nil
}

func (ln *lane) call(ctx context.Context, h *handler, tx bun.Tx, ds []*delivery) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, ln.c.cfg.Timeout, h.tooLong)
	defer cancel()
	ctx, span := ln.span(ctx, h, ds)
	began := time.Now()
	defer func() {
		m := ln.l.bus.metrics
		telemetry.Add(ctx, m.Attempts, int64(len(ds)), telemetry.Consumer, ln.c.name, telemetry.EventType, h.eventType)
		telemetry.Observe(ctx, m.HandlerTime, time.Since(began), telemetry.Consumer, ln.c.name, telemetry.EventType, h.eventType)
		telemetry.End(span, err)
	}()
	for _, d := range ds {
		d.started = began
	}
	if err = h.run(ctx, tx, ds); err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w (%w)", err, context.Cause(ctx))
	}
	return err
}

// span continues the trace of the request that saved the event. A batch of several
// has a span of its own with a link to each.
func (ln *lane) span(ctx context.Context, h *handler, ds []*delivery) (context.Context, trace.Span) {
	env := ds[0].env
	opts := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindConsumer)}
	if len(ds) == 1 {
		ctx = ofMessage(telemetry.Extract(ctx, env.Metadata), env, nil)
	} else {
		ctx = ofMany(ctx, ds)
		for _, d := range ds {
			if ctx := telemetry.Extract(context.Background(), d.env.Metadata); ctx != context.Background() {
				opts = append(opts, trace.WithLinks(trace.LinkFromContext(ctx)))
			}
		}
	}
	ctx, span := ln.l.bus.tracer.Start(ctx, h.spanName, opts...)
	if span.IsRecording() {
		span.SetAttributes(
			telemetry.String(telemetry.Consumer, ln.c.name),
			telemetry.String(telemetry.EventType, h.eventType),
			telemetry.String(telemetry.EventID, env.ID),
			telemetry.String(telemetry.AggregateType, env.AggregateType),
			telemetry.String(telemetry.AggregateID, env.AggregateID),
			telemetry.String(telemetry.QueueTime, fmt.Sprint(max(time.Since(env.CreatedAt), 0).Milliseconds())),
		)
	}
	return ctx, span
}
