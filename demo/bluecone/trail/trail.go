// Package trail leaves the trace of one asset movement: a span and a log line.
package trail

import (
	"context"
	"log/slog"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/bluecone-go/bluecone/bus"
)

// Start begins an asset movement, such as "wallet.freeze". Call the result with its outcome.
func Start(ctx context.Context, name, orderID, idempotencyKey string) (context.Context, func(result string, err error)) {
	ctx, span := otel.Tracer("github.com/bluecone-go/bluecone/demo").Start(ctx, name,
		trace.WithAttributes(attribute.String("orderId", orderID), attribute.String("idempotencyKey", idempotencyKey)))
	return ctx, func(result string, err error) {
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
			result = "ERROR"
		}
		span.SetAttributes(attribute.String("result", result))
		slog.InfoContext(ctx, "asset movement", "movement", name, "orderId", orderID, "idempotencyKey", idempotencyKey, "result", result,
			"traceId", span.SpanContext().TraceID().String(), "requestId", bus.MetadataFrom(ctx)[bus.MetaRequestID])
		span.End()
	}
}
