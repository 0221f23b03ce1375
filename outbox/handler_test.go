package outbox_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// V3: PostgreSQL refuses everything after a failed statement. A handler that swallows the error has
// failed, and is told why.
func TestSwallowedErrorOnPostgresIsAFailedAttempt(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testdb.Open(t, "postgres"))
	f.effects()
	bus.On(f.bus.Consumer("Careless", bus.ConsumerConfig{}), func(ctx context.Context, tx bun.Tx, m bus.Message[orderPaid]) error {
		if err := effect(ctx, tx, m, 1); err != nil {
			return err
		}
		_, _ = tx.ExecContext(ctx, "INSERT INTO nowhere VALUES (1)")
		return nil
	})
	f.save(orderPaid{OrderID: "1"})
	f.once()
	require.Equal(t, map[consumelog.Status]int{consumelog.Failed: 1}, f.deliveries())
	require.Equal(t, 1, f.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE attempts = 1 AND error_message LIKE '%that the handler swallowed%'"))
	require.Zero(t, f.count("SELECT COUNT(*) FROM effect"))
}

// V13, V38: an attempt is stored whatever its error says.
func TestAnyErrorTextCanBeStored(t *testing.T) {
	t.Parallel()
	texts := []string{"", "NUL \x00", "\xff\xfe", strings.Repeat("长", 70_000), "'; DROP TABLE bc_outbox_event; --", "\U0001F600"}
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		bus.On(f.bus.Consumer("Bad", bus.ConsumerConfig{}), func(_ context.Context, _ bun.Tx, m bus.Message[orderPaid]) error {
			if m.Payload.Seq%2 == 0 {
				return bus.Skip("because " + texts[m.Payload.Seq/2])
			}
			return errors.New(texts[m.Payload.Seq/2])
		})
		for i := range 2 * len(texts) {
			f.save(orderPaid{OrderID: ids(100)[i], Seq: i})
		}
		f.once()
		require.Equal(t, map[consumelog.Status]int{consumelog.Failed: len(texts), consumelog.Skipped: len(texts)}, f.deliveries())
		require.Equal(t, len(texts), f.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE attempts = 1 AND status = 'FAILED'"))
		require.Equal(t, len(texts), f.count("SELECT COUNT(*) FROM bc_delivery_attempt"))
	})
}

// A handler's context ends with its timeout, and the attempt says so.
func TestHandlerTimesOut(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		bus.On(f.bus.Consumer("Slow", bus.ConsumerConfig{Timeout: 20 * time.Millisecond}), func(ctx context.Context, _ bun.Tx, _ bus.Message[orderPaid]) error {
			<-ctx.Done()
			return ctx.Err()
		})
		f.save(orderPaid{OrderID: "1"})
		f.once()
		require.Equal(t, map[consumelog.Status]int{consumelog.Failed: 1}, f.deliveries())
		require.Equal(t, 1, f.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE error_message LIKE '%20ms%'"), "the error names the timeout")
	})
}

// A handler that ignores its ended context is abandoned after a grace time: its transaction is
// rolled back, and the lane goes on.
func TestStuckHandlerIsAbandoned(t *testing.T) {
	t.Parallel()
	for _, dialect := range testdb.Servers() { // in SQLite it would hold the only writer
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, testdb.Open(t, dialect))
			f.effects()
			gate := make(chan struct{})
			defer close(gate)
			bus.On(f.bus.Consumer("Stuck", bus.ConsumerConfig{Timeout: 2 * time.Second, Concurrency: 1, Batch: 1}), func(ctx context.Context, tx bun.Tx, m bus.Message[orderPaid]) error {
				if m.AggregateID == "stuck" {
					<-gate
				}
				return effect(ctx, tx, m, 1)
			})
			f.save(orderPaid{OrderID: "stuck"}, orderPaid{OrderID: "next"})
			f.once()
			require.Equal(t, map[consumelog.Status]int{consumelog.Failed: 1, consumelog.Success: 1}, f.deliveries())
			require.Equal(t, 1, f.count("SELECT COUNT(*) FROM effect WHERE aggregate = 'next'"))
		})
	}
}

// A handler that saves an event continues the chain: same trace, same request id, and only if it commits.
func TestEventsSavedByHandlersFollowTheirCause(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		spans := tracetest.NewSpanRecorder()
		provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
		f := &fixture{t: t, db: db}
		var err error
		f.ob, err = outbox.New(db, outbox.Config{Logger: logger(), TracerProvider: provider})
		require.NoError(t, err)
		f.bus = bus.New(db, bus.Config{Logger: logger(), TracerProvider: provider})
		f.log = f.ob.Log()
		bus.On(f.bus.Consumer("First", bus.ConsumerConfig{}), func(ctx context.Context, tx bun.Tx, m bus.Message[orderPaid]) error {
			return f.ob.Save(ctx, tx, keyless(m.AggregateID))
		})
		var last bus.Message[renamed]
		var within trace.SpanContext
		bus.On(f.bus.Consumer("Second", bus.ConsumerConfig{}), func(ctx context.Context, _ bun.Tx, m bus.Message[renamed]) error {
			last, within = m, trace.SpanContextFromContext(ctx)
			return nil
		})
		ctx, request := provider.Tracer("test").Start(bus.WithMetadata(t.Context(), bus.Metadata{bus.MetaRequestID: "req-7"}), "POST /orders")
		require.NoError(t, db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error { return f.ob.Save(ctx, tx, orderPaid{OrderID: "1"}) }))
		request.End()
		f.once()
		f.once()
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 2}, f.statuses())
		want := request.SpanContext().TraceID()
		require.Equal(t, want, within.TraceID())
		require.Equal(t, want.String(), last.Metadata[bus.MetaTraceID])
		require.Equal(t, "req-7", last.Metadata[bus.MetaRequestID])
		names := make(map[string]trace.SpanKind)
		for _, s := range spans.Ended() {
			if s.SpanContext().TraceID() == want {
				names[s.Name()] = s.SpanKind()
				require.NotContains(t, attributesOf(s), "orderId", "never the payload")
			}
		}
		require.Equal(t, map[string]trace.SpanKind{
			"POST /orders": trace.SpanKindInternal, "save order.paid": trace.SpanKindProducer, "consume order.paid": trace.SpanKindConsumer,
			"save order.renamed": trace.SpanKindProducer, "consume order.renamed": trace.SpanKindConsumer,
		}, names)
	})
}

func attributesOf(s sdktrace.ReadOnlySpan) string {
	set := attribute.NewSet(s.Attributes()...)
	return set.Encoded(attribute.DefaultEncoder())
}
