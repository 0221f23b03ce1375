package settle

import (
	"context"
	"log/slog"

	"github.com/bluecone-go/bluecone/internal/telemetry"
)

// Meter counts and logs events that have got a new status. It is safe for concurrent use.
type Meter struct {
	metrics *telemetry.Metrics
	logger  *slog.Logger
}

// NewMeter returns one that tells metrics and a logger.
func NewMeter(metrics *telemetry.Metrics, logger *slog.Logger) *Meter {
	return &Meter{metrics: metrics, logger: logger}
}

// Count counts changes.
func (m *Meter) Count(ctx context.Context, changes ...Change) {
	for _, c := range changes {
		switch c.Status {
		case Sent:
			telemetry.Add(ctx, m.metrics.Sent, 1, telemetry.EventType, c.EventType)
		case Failed:
			telemetry.Add(ctx, m.metrics.Failed, 1, telemetry.EventType, c.EventType)
		case Dead:
			telemetry.Add(ctx, m.metrics.Dead, 1, telemetry.EventType, c.EventType)
			m.logger.ErrorContext(ctx, "event is DEAD and waits for an operator", telemetry.EventID, c.EventID, telemetry.EventType, c.EventType)
		default:
		}
	}
}
