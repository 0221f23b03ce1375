package telemetry

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/bluecone-go/bluecone/internal/text"
)

// Tracer returns the tracer of bluecone; tp nil means the global provider.
func Tracer(tp trace.TracerProvider) trace.Tracer {
	if tp == nil {
		tp = otel.GetTracerProvider()
	}
	return tp.Tracer(Scope)
}

// Inject writes the span of ctx into the carrier (traceparent, tracestate) and returns
// its trace id, "" without a span.
func Inject(ctx context.Context, carrier map[string]string) string {
	sc := trace.SpanContextFromContext(ctx)
	if !sc.IsValid() {
		return ""
	}
	propagation.TraceContext{}.Inject(ctx, propagation.MapCarrier(carrier))
	return sc.TraceID().String()
}

// Extract returns ctx with the remote span that the carrier names, if it names one.
func Extract(ctx context.Context, carrier map[string]string) context.Context {
	if carrier["traceparent"] == "" {
		return ctx
	}
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier(carrier))
}

// End closes a span with the outcome of its work.
func End(span trace.Span, err error) {
	if err != nil {
		said := text.Error(err)
		span.RecordError(errors.New(said)) //nolint:err113 // the text without what a database quotes back
		span.SetStatus(codes.Error, said)
	}
	span.End()
}

// String is a span attribute.
func String(key, value string) attribute.KeyValue { return attribute.String(key, value) }
