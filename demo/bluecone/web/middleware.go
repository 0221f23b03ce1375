package web

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/demo/bluecone/input"
)

// recorder remembers the status of an answer.
type recorder struct {
	http.ResponseWriter
	status int
}

// WriteHeader remembers the status and passes it on.
func (r *recorder) WriteHeader(status int) {
	r.status = status
	r.ResponseWriter.WriteHeader(status)
}

// Unwrap lets a deadline be set on the connection.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

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
		rec := &recorder{ResponseWriter: w, status: http.StatusOK}
		next.ServeHTTP(rec, r.WithContext(ctx))
		span.SetAttributes(attribute.Int("http.response.status_code", rec.status))
		if rec.status >= http.StatusInternalServerError {
			span.SetStatus(codes.Error, http.StatusText(rec.status))
		}
		slog.DebugContext(ctx, "request", "method", r.Method, "path", r.URL.Path, "status", rec.status, "took", time.Since(began),
			"traceId", span.SpanContext().TraceID().String(), "requestId", requestID)
	})
}

// forUser adds the user to the metadata of the events that the request saves.
func forUser(ctx context.Context, userID string) context.Context {
	return bus.WithMetadata(ctx, bus.Metadata{bus.MetaUserID: userID})
}

// jsonErrors answers an unknown path or a wrong method in the API's own form. Nothing has a name that
// databases would not store, or not tell apart.
func jsonErrors(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name := range strings.SplitSeq(r.URL.Path, "/") {
			if name != "" && input.Text("path", name, 128) != nil {
				answer(w, http.StatusNotFound, failure{"there is nothing of this name", "NOT_FOUND"})
				return
			}
		}
		if _, pattern := mux.Handler(r); pattern == "" {
			probe := &recorder{ResponseWriter: discard{http.Header{}}, status: http.StatusOK}
			mux.ServeHTTP(probe, r)
			code := "NOT_FOUND"
			if probe.status == http.StatusMethodNotAllowed {
				code = "METHOD_NOT_ALLOWED"
				w.Header().Set("Allow", probe.Header().Get("Allow"))
			}
			answer(w, probe.status, failure{http.StatusText(probe.status), code})
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// discard takes an answer that nobody will see.
type discard struct{ header http.Header }

// Header collects the headers of the answer, which tell what the mux would have said.
func (d discard) Header() http.Header { return d.header }

// Write drops the body.
func (d discard) Write(b []byte) (int, error) { return len(b), nil }

// WriteHeader drops the status; the recorder around it has it.
func (d discard) WriteHeader(int) {}
