package handler

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/bluecone-go/bluecone/internal/contain"
	"github.com/bluecone-go/bluecone/internal/origin"
	"github.com/bluecone-go/bluecone/internal/telemetry"
)

// stuckGrace is how long a handler may ignore its ended context.
const stuckGrace = 5 * time.Second

// ErrStuck is the failure of a handler that ignores its ended context. It is abandoned:
// its transaction is rolled back and its place in the lane is free again.
var ErrStuck = errors.New("the handler did not return after its context had ended; it was abandoned")

// Call is one call of the handlers of some messages to one consumer, in order.
type Call struct {
	c        *Consumer
	ms, own  []*Message   // own are what the handlers get
	began    atomic.Int64 // when the present one began
	at, many atomic.Int64 // the messages it is about: how many before it, and how many
}

// Prepare decodes the messages and copies them, so that a handler that was abandoned shares nothing with the next run of
// its delivery.
func (c *Consumer) Prepare(ms []*Message) (*Call, error) {
	own, all, now := make([]*Message, len(ms)), make([]Message, len(ms)), time.Now()
	for i, m := range ms {
		if err := c.Decode(m); err != nil {
			return nil, err
		}
		m.Record, m.Started = Record{}, now
		all[i] = *m
		own[i] = &all[i]
	}
	return &Call{c: c, ms: ms, own: own}, nil
}

// Run calls the handlers in a goroutine of their own, which contains panics and runtime.Goexit, and does not wait for one
// that is stuck. Its error is a [RefusalError].
func (c *Call) Run(ctx context.Context, tx Transaction) (took time.Duration, err error) {
	c.began.Store(time.Now().UnixNano())
	result := contain.Start("handler", func() error { return c.all(ctx, tx) })
	start := time.Now()
	err = finite(c.watch(ctx, result))
	took = time.Since(start)
	for i, m := range c.ms {
		m.Payload = nil // the handler may have changed what it holds: another run asks for it again
		if !errors.Is(err, ErrStuck) {
			m.Record, m.Started = c.own[i].Record, c.own[i].Started
		}
	}
	if err != nil {
		err = &RefusalError{First: int(c.at.Load()), Count: int(c.many.Load()), err: err}
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

// RefusalError is the error of a call, and which of its messages it was about: the handlers have accepted those before.
type RefusalError struct {
	First, Count int
	err          error
}

func (r *RefusalError) Error() string { return r.err.Error() }
func (r *RefusalError) Unwrap() error { return r.err }

// watch waits for the result, names a slow handler while it is slow, and gives up a stuck one.
func (c *Call) watch(ctx context.Context, result <-chan error) error {
	logger, timeout, name := c.c.of.Logger, c.c.Config.Timeout, c.c.Name
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var over time.Time
	for warned := false; ; {
		select {
		case err := <-result:
			return err
		case <-tick.C:
		}
		took := time.Since(time.Unix(0, c.began.Load()))
		if ctx.Err() != nil && over.IsZero() {
			over = time.Now()
		}
		if took-stuckGrace > timeout || (!over.IsZero() && time.Since(over) > stuckGrace) {
			logger.ErrorContext(ctx, "handler is stuck and was abandoned", telemetry.Consumer, name, telemetry.Took, took)
			return ErrStuck
		}
		if took > timeout/2 && !warned {
			warned = true
			logger.WarnContext(ctx, "handler is slow", telemetry.Consumer, name, telemetry.EventID, c.ms[0].Event.ID,
				telemetry.Count, len(c.ms), telemetry.Took, took)
		}
	}
}

// all calls the handler of each message, or of each run of messages of one type for a batch handler.
func (c *Call) all(ctx context.Context, tx Transaction) error {
	ms := c.own
	for first := 0; len(ms) > 0; {
		h, n := c.c.handlers[ms[0].Event.Type], 1
		for n < len(ms) && h.joins(c.c.handlers[ms[n].Event.Type]) {
			n++
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		c.began.Store(time.Now().UnixNano())
		c.at.Store(int64(first))
		c.many.Store(int64(n))
		if fault := c.c.of.Faults.BeforeHandler; fault != nil {
			if err := fault(c.c.Name, ms[0].Event.ID); err != nil {
				return err
			}
		}
		if err := c.c.call(ctx, h, tx, ms[:n]); err != nil {
			return err
		}
		ms, first = ms[n:], first+n
	}
	return nil
}

// joins reports whether one call of the handler takes what the other handles, too.
func (h *Handler) joins(other *Handler) bool {
	return h.Batch && (h == other || (h.Group != nil && h.Group == other.Group))
}

func (c *Consumer) call(ctx context.Context, h *Handler, tx Transaction, ms []*Message) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.Config.Timeout, h.tooLong)
	defer cancel()
	ctx, span := c.span(ctx, h, ms)
	began := time.Now()
	defer func() {
		m := c.of.Metrics
		telemetry.Add(ctx, m.Attempts, int64(len(ms)), telemetry.Consumer, c.Name, telemetry.EventType, h.EventType)
		telemetry.Observe(ctx, m.HandlerTime, time.Since(began), telemetry.Consumer, c.Name, telemetry.EventType, h.EventType)
		telemetry.End(span, err)
	}()
	for _, m := range ms {
		m.Started = began
	}
	tx, over := tx.of(h)
	defer over() // before its context ends: that would end the connection under rows that are left open
	run := func(ctx context.Context) error { return h.Run(ctx, tx, ms) }
	if around := c.of.Around; around != nil {
		err = around(ctx, c, ms, run)
	} else {
		err = run(ctx)
	}
	if err != nil && tx.fence != nil {
		err = tx.fence.explain(err)
	}
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w (%w)", err, context.Cause(ctx))
	}
	return err
}

// span continues the trace of the request that saved the event. A batch of several
// has a span of its own with a link to each.
func (c *Consumer) span(ctx context.Context, h *Handler, ms []*Message) (context.Context, trace.Span) {
	event := ms[0].Event
	opts := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindConsumer)}
	if len(ms) == 1 {
		ctx = origin.WithMessage(telemetry.Extract(ctx, event.Metadata), event.Metadata, nil, event.TenantID, event.StoreID)
	} else {
		ctx = ofMany(ctx, ms)
		for _, m := range ms {
			if ctx := telemetry.Extract(context.Background(), m.Event.Metadata); ctx != context.Background() {
				opts = append(opts, trace.WithLinks(trace.LinkFromContext(ctx)))
			}
		}
	}
	ctx, span := c.of.Tracer.Start(ctx, h.spanName, opts...)
	if span.IsRecording() {
		span.SetAttributes(
			telemetry.String(telemetry.Consumer, c.Name),
			telemetry.String(telemetry.EventType, h.EventType),
			telemetry.String(telemetry.EventID, event.ID),
			telemetry.String(telemetry.AggregateType, event.AggregateType),
			telemetry.String(telemetry.AggregateID, event.AggregateID),
			telemetry.String(telemetry.QueueTime, fmt.Sprint(max(time.Since(event.CreatedAt), 0).Milliseconds())),
		)
	}
	return ctx, span
}

// ofMany returns ctx for a call about several messages: what it saves belongs to the tenant that they have in common.
func ofMany(ctx context.Context, ms []*Message) context.Context {
	o := origin.Origin{TenantID: ms[0].Event.TenantID, StoreID: ms[0].Event.StoreID}
	for _, m := range ms[1:] {
		o.Mixed = o.Mixed || m.Event.TenantID != o.TenantID || m.Event.StoreID != o.StoreID
	}
	return origin.With(ctx, o)
}
