package signals_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// A handler that saves an event continues the chain: same trace, same request id, and only if it commits.
func TestEventsSavedByHandlersFollowTheirCause(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		spans := tracetest.NewSpanRecorder()
		provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
		f := newFixture(t, db, outbox.Config{Logger: silent, TracerProvider: provider}, bus.Config{Logger: silent, TracerProvider: provider})
		bus.On(f.bus.Consumer("First", bus.ConsumerConfig{}), func(ctx context.Context, tx bun.Tx, m bus.Message[orderPaid]) error {
			return f.ob.Save(ctx, tx, renamed{m.AggregateID})
		})
		var last bus.Message[renamed]
		var within trace.SpanContext
		bus.On(f.bus.Consumer("Second", bus.ConsumerConfig{}), func(ctx context.Context, _ bun.Tx, m bus.Message[renamed]) error {
			last, within = m, trace.SpanContextFromContext(ctx)
			return nil
		})
		ctx, request := provider.Tracer("test").Start(bus.WithMetadata(t.Context(), bus.Metadata{bus.MetaRequestID: "req-7"}), "POST /orders")
		require.NoError(t, f.trySave(ctx, orderPaid{OrderID: "1"}))
		request.End()
		f.once()
		f.once()
		require.Equal(t, 2, f.count("SELECT COUNT(*) FROM bc_outbox_event WHERE status = 'SENT'"))
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
