package outbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/uptrace/bun"
	"go.opentelemetry.io/otel/trace"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/kind"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/telemetry"
)

// ErrInvalidEvent means that [Outbox.Save] refused an event before it spoke to the database. The
// error's text says which event, and what is wrong with it.
var ErrInvalidEvent = errors.New("invalid event")

// Save stores the events in the caller's transaction. Nothing is stored, and the
// transaction is still usable, if one of them is not valid; the error is an
// [ErrInvalidEvent] and says which and why.
// Saving a keyed event that exists already, or has existed ([RetentionConfig.KeepKeys]), is a no-op.
//
// A publisher of this process gets the events within milliseconds after the commit. Give Save the context that db.RunInTx of
// bun gives its function: then the commit is seen. The commits of other transactions are looked for, every 2 ms, for 2 s; after
// that the events are left to the poll ([PublisherConfig.Poll]).
//
// It never waits for the engine. It waits for another transaction only if that one is saving the same keyed event; several
// keyed events of one call are taken in one order, so that such calls do not deadlock. Transactions that save the same
// keys by several calls, in opposite orders, do, as if they changed the same rows: the database ends one of them.
//
// Events of one aggregate are delivered in the order of their commits if the
// transaction has locked the aggregate (by changing its row, say) before it saves.
//
// The transaction may be any [Tx]: one of the outbox's pool, or of another pool on its database. Save neither commits it nor
// rolls it back. It refuses, and says what to do, a transaction that is nil or was never begun, one that has ended, and one that
// bun has begun on another kind of database.
func (o *Outbox) Save(ctx context.Context, tx Tx, events ...bus.Event) (err error) {
	switch {
	case len(events) == 0:
		return nil
	case o == nil:
		return errors.New("outbox: Save of a nil *Outbox: make one by outbox.New, and give it to what saves")
	}
	in, err := o.transaction(tx)
	if err != nil {
		return err
	}
	ctx, span := o.tracer.Start(ctx, "save "+typeOf(events[0]), trace.WithSpanKind(trace.SpanKindProducer))
	defer func() { telemetry.End(span, err) }()
	rows := make([]store.NewEvent, len(events))
	for i, e := range events {
		if rows[i], err = o.prepare(ctx, e); err != nil {
			return kind.Of(fmt.Errorf("outbox: event %d of %d (%s): %w", i+1, len(events), typeOf(e), err), ErrInvalidEvent)
		}
	}
	span.SetAttributes(telemetry.String(telemetry.EventID, rows[0].ID), telemetry.String(telemetry.EventType, rows[0].Type),
		telemetry.String(telemetry.AggregateType, rows[0].AggregateType), telemetry.String(telemetry.AggregateID, rows[0].AggregateID))
	if in.formats != nil {
		if err := o.quoting.Check(ctx, in.formats); err != nil {
			return refusal(o.db.Dialect(), rows[0].Type, err)
		}
	}
	m := o.hook.markOf(ctx, in)
	stored, err := o.saving.Save(ctx, o.notify.by(in.Tx, m != nil), rows)
	if err != nil {
		return refusal(o.db.Dialect(), rows[0].Type, err)
	}
	switch ids := dueAtOnce(stored); {
	case len(stored) == 0:
	case m != nil:
		m.add(ids)
	default:
		o.unseen.add(time.Now(), ids)
	}
	o.countSaved(ctx, rows, stored)
	return nil
}

func (o *Outbox) countSaved(ctx context.Context, rows, stored []store.NewEvent) {
	telemetry.AddEach(ctx, o.metrics.Created, stored, store.TypeOf)
	telemetry.AddEach(ctx, o.metrics.Repeated, store.Unstored(rows, stored), store.TypeOf)
	for _, r := range stored {
		o.logger.DebugContext(ctx, "event saved", telemetry.EventID, r.ID, telemetry.EventType, r.Type,
			telemetry.AggregateType, r.AggregateType, telemetry.AggregateID, r.AggregateID,
			telemetry.TraceID, trace.SpanContextFromContext(ctx).TraceID().String(), telemetry.RequestID, bus.MetadataFrom(ctx)[bus.MetaRequestID])
	}
}

// commits are the ways in which the publishers learn of commits.
type commits struct {
	hook   *commitHook
	unseen unseen
	notify notify
}

func (c *commits) notice(ob *Outbox) {
	c.hook, c.unseen.ob, c.unseen.commits, c.notify.ob = &commitHook{ob: ob}, ob, make(chan struct{}, 1), ob
}

// commitHook notices the commit of a transaction that saved events. It needs nothing but the user's plain db.RunInTx: bun keeps the
// context that the hook returns for BEGIN, and shows it again for COMMIT.
type commitHook struct{ ob *Outbox }

type markKey struct{ hook *commitHook }

// mark belongs to one transaction.
type mark struct {
	saved atomic.Bool
	mu    sync.Mutex
	ids   []string // what can be handed over
}

// BeforeQuery gives a beginning transaction its mark.
func (h *commitHook) BeforeQuery(ctx context.Context, ev *bun.QueryEvent) context.Context {
	if ev.Query != "BEGIN" || store.IsEngine(ctx) {
		return ctx
	}
	return context.WithValue(ctx, markKey{h}, &mark{})
}

// markOf is the mark of a transaction whose commit will be seen, or nil. It is seen if the transaction is bun's, of the outbox's
// pool, and Save has got the context that db.RunInTx gave its function.
func (h *commitHook) markOf(ctx context.Context, tx transaction) *mark {
	m, ok := ctx.Value(markKey{h}).(*mark)
	if !ok || tx.formats == nil || tx.formats.NewRaw("").DB().DB != h.ob.db.DB {
		return nil
	}
	return m
}

// dueAtOnce are the events that were not delayed, by their event_ids.
func dueAtOnce(rows []store.NewEvent) (ids []string) {
	for _, r := range rows {
		if r.DeliverAt.IsZero() {
			ids = append(ids, r.ID)
		}
	}
	return ids
}

// add notes that the transaction has saved events, and which of them can be handed over.
func (m *mark) add(ids []string) {
	m.saved.Store(true)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ids = append(m.ids, ids...)
}

// AfterQuery hands what a committed transaction saved to one publisher of this process. If the outcome of the COMMIT is unknown, it
// wakes all: looking in vain costs little.
func (h *commitHook) AfterQuery(ctx context.Context, ev *bun.QueryEvent) {
	if ev.Query != "COMMIT" {
		return
	}
	m, ok := ctx.Value(markKey{h}).(*mark)
	switch {
	case !ok:
		return
	case !m.saved.Load(): // Save may have got another context, as it does in a handler
		signal(h.ob.unseen.commits)
		return
	}
	if ev.Err == nil {
		m.mu.Lock()
		h.ob.here.handOver(m.ids)
		m.mu.Unlock()
	} else {
		h.ob.Wake()
	}
	h.ob.stmts.Learn(ctx) // here no transaction is open
}

// handOver gives just committed events to a publisher of this process.
func (h *publishers) handOver(ids []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for p := range h.subscribed {
		p.engine.Handover().Put(ids)
		return
	}
}

// Wake makes the publishers of this process look for events at once. Saving does this
// by itself; use it after writing events by other means.
func (o *Outbox) Wake() {
	o.here.mu.Lock()
	defer o.here.mu.Unlock()
	for p := range o.here.subscribed {
		p.engine.Wake()
	}
}

func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
