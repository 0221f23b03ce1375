package signals_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// The canaries stand for what nobody may read outside the payload and the metadata.
const (
	canary       = "CANARY-4929"
	canaryNumber = "49294929492949294929"
)

type card struct {
	Order  string `json:"order"`
	Holder string `json:"holder"`
	Number int64  `json:"number"`
}

func (card) EventType() string              { return "card.charged" }
func (c card) Aggregate() (kind, id string) { return "ORDER", c.Order }

// unwell answers in every way in which a handler can go wrong with what it has got.
func unwell(ctx context.Context, tx bun.Tx, m bus.Message[card]) error {
	switch m.AggregateID {
	case "fails":
		return errors.New("the bank said no")
	case "panics":
		panic("very wrong")
	case "duplicate":
		for range 2 {
			if _, err := tx.ExecContext(ctx, "INSERT INTO holder (name) VALUES (?)", m.Payload.Holder); err != nil {
				return err
			}
		}
	case "type":
		_, err := tx.ExecContext(ctx, "INSERT INTO holder (name, n) VALUES ('x', CAST(? AS "+castOf(tx)+"))", m.Payload.Holder)
		return err
	case "long":
		_, err := tx.ExecContext(ctx, "INSERT INTO holder (name) VALUES (?)", strings.Repeat(m.Payload.Holder, 100))
		return err
	}
	return nil
}

func castOf(tx bun.Tx) string {
	if tx.Dialect().Name().String() == "pg" {
		return "INT"
	}
	return "DECIMAL"
}

// Payloads and metadata never appear in a log, a span, a metric, an error or another column.
func TestNoPayloadLeavesItsColumn(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		log, reader, spans := &lines{}, sdkmetric.NewManualReader(), tracetest.NewInMemoryExporter()
		logger := slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		meters, tracers := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)), sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
		alerts := &lines{}
		f := newFixture(t, db, outbox.Config{Logger: logger, MeterProvider: meters, TracerProvider: tracers},
			bus.Config{Logger: logger, MeterProvider: meters, TracerProvider: tracers, OnDeadLetter: func(_ context.Context, d bus.DeadLetter) {
				fmt.Fprintln(alerts, d.Error)
			}})
		f.exec("CREATE TABLE holder (name VARCHAR(200) PRIMARY KEY, n INT)")
		bus.On(f.bus.Consumer("Bank", bus.ConsumerConfig{}), unwell)

		f.once() // registers
		for _, how := range []string{"works", "fails", "panics", "duplicate", "type", "long"} {
			f.save(outbox.With(card{Order: how, Holder: canary}, outbox.Meta("holder", canary)))
		}
		for id, payload := range map[string]string{
			"shape":  `{"holder": ["` + canary + `"]}`,
			"number": `{"number": ` + canaryNumber + `}`,
			"syntax": `{"holder": "` + canary + `"`,
		} {
			// PostgreSQL refuses the last
			_, _ = db.ExecContext(t.Context(), "INSERT INTO bc_outbox_event (aggregate_type, aggregate_id, event_type, event_id, event_payload) "+
				"VALUES ('ORDER', ?, 'card.charged', ?, ?)", id, id, payload)
		}
		f.once()
		f.hurry()
		f.once()
		refused := f.trySave(t.Context(), card{Holder: canary + strings.Repeat("x", 300<<10)})
		require.Error(t, refused)

		for sink, text := range map[string]string{
			"log": log.text(), "spans": fmt.Sprintf("%+v", spans.GetSpans()), "metrics": metricText(t, reader), "alerts": alerts.text(),
			"error": refused.Error(),
			"columns": f.texts("SELECT COALESCE(last_error, '') FROM bc_outbox_event") + f.texts("SELECT COALESCE(error_message, '') "+
				"FROM bc_event_consume_log") + f.texts("SELECT COALESCE(error_message, '') FROM bc_delivery_attempt"),
		} {
			require.NotEmpty(t, text, sink)
			for _, secret := range []string{canary, canaryNumber} {
				at := strings.Index(text, secret)
				require.Negative(t, at, "%s: …%s", sink, text[max(at-200, 0):min(max(at, 0)+40, len(text))])
			}
		}
		require.Contains(t, f.texts("SELECT COALESCE(error_message, '') FROM bc_event_consume_log"), "the bank said no",
			"what is no secret stays")
	})
}

func (f *fixture) texts(query string) string {
	f.t.Helper()
	var all []string
	require.NoError(f.t, f.db.NewRaw(query).Scan(f.t.Context(), &all))
	return strings.Join(all, "\n")
}

func metricText(t *testing.T, reader sdkmetric.Reader) string {
	t.Helper()
	var rm metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &rm))
	return fmt.Sprintf("%+v", rm)
}
