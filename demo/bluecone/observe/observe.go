// Package observe sets up the OpenTelemetry SDK of the demo. The library itself knows only the API.
package observe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	otelprom "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/exporters/stdout/stdouttrace"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// Telemetry is what has been set up.
type Telemetry struct {
	// Metrics serves the metrics as Prometheus text.
	Metrics http.Handler
	tracer  *sdktrace.TracerProvider
	meter   *metric.MeterProvider
}

// Setup makes the global providers. export is "", "stdout" (to out) or "otlp", whose
// endpoint comes from the standard OTEL_EXPORTER_OTLP_* variables.
func Setup(ctx context.Context, export string, out io.Writer, processors ...sdktrace.SpanProcessor) (*Telemetry, error) {
	var opts []sdktrace.TracerProviderOption
	for _, p := range processors {
		opts = append(opts, sdktrace.WithSpanProcessor(p))
	}
	switch export {
	case "":
	case "stdout":
		e, err := stdouttrace.New(stdouttrace.WithWriter(out))
		if err != nil {
			return nil, fmt.Errorf("trace exporter: %w", err)
		}
		opts = append(opts, sdktrace.WithSyncer(e))
	case "otlp":
		e, err := otlptracehttp.New(ctx)
		if err != nil {
			return nil, fmt.Errorf("trace exporter: %w", err)
		}
		opts = append(opts, sdktrace.WithBatcher(e))
	default:
		return nil, fmt.Errorf("--trace %q is unknown: use stdout or otlp", export)
	}
	registry := prometheus.NewRegistry()
	exporter, err := otelprom.New(otelprom.WithRegisterer(registry), otelprom.WithoutScopeInfo())
	if err != nil {
		return nil, fmt.Errorf("metrics exporter: %w", err)
	}
	res := resource.NewSchemaless()
	t := &Telemetry{
		Metrics: promhttp.HandlerFor(registry, promhttp.HandlerOpts{}),
		tracer:  sdktrace.NewTracerProvider(append(opts, sdktrace.WithResource(res))...),
		meter:   metric.NewMeterProvider(metric.WithReader(exporter), metric.WithResource(res)),
	}
	otel.SetTracerProvider(t.tracer)
	otel.SetMeterProvider(t.meter)
	otel.SetTextMapPropagator(propagation.TraceContext{})
	return t, nil
}

// Close flushes and ends the providers.
func (t *Telemetry) Close(ctx context.Context) error {
	return errors.Join(t.tracer.Shutdown(ctx), t.meter.Shutdown(ctx))
}
