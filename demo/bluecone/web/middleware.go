package web

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/demo/bluecone/input"
	"github.com/bluecone-go/bluecone/demo/httpserver"
)

// traced gives every request a span and a request id, and logs one line.
func traced(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		requestID := r.Header.Get("X-Request-Id") // taken over if it is a plain word
		if !input.IsWord(requestID) {
			requestID = uuid.NewString()
		}
		ctx := otel.GetTextMapPropagator().Extract(r.Context(), propagation.HeaderCarrier(r.Header))
		ctx, span := otel.Tracer("github.com/bluecone-go/bluecone/demo").Start(ctx, r.Method+" "+r.URL.Path,
			trace.WithSpanKind(trace.SpanKindServer),
			trace.WithAttributes(attribute.String("requestId", requestID)))
		defer span.End()
		ctx = bus.WithMetadata(ctx, bus.Metadata{bus.MetaRequestID: requestID})
		w.Header().Set("X-Request-Id", requestID)
		rec := &httpserver.Recorder{ResponseWriter: w, Status: http.StatusOK}
		next.ServeHTTP(rec, r.WithContext(ctx))
		span.SetAttributes(attribute.Int("http.response.status_code", rec.Status))
		if rec.Status >= http.StatusInternalServerError {
			span.SetStatus(codes.Error, http.StatusText(rec.Status))
		}
		slog.DebugContext(ctx, "request", "method", r.Method, "path", r.URL.Path, "status", rec.Status, "took", time.Since(began),
			"traceId", span.SpanContext().TraceID().String(), "requestId", requestID)
	})
}

// forUser adds the user to the metadata of the events that the request saves.
func forUser(ctx context.Context, userID string) context.Context {
	return bus.WithMetadata(ctx, bus.Metadata{bus.MetaUserID: userID})
}
