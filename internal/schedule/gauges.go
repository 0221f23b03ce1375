package schedule

import (
	"context"
	"fmt"
	"time"

	"github.com/bluecone-go/bluecone/internal/telemetry"
)

const gaugeLastSuccess = "scheduler.last_success_age"

// gauge makes readable how long ago each job last succeeded, in any instance, for as long as this one
// runs. A job that never has is as old as this instance.
func (r *Runner) gauge(ctx context.Context) (stop func()) {
	began := time.Now()
	read := func(ctx context.Context, set func(name string, v float64, kv ...string)) error {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		for code := range r.jobs {
			age, ok, err := r.sql.LastSuccess(ctx, r.db, code)
			if err != nil {
				return fmt.Errorf("schedule: %s: read the last success: %w", code, err)
			}
			if !ok {
				age = time.Since(began)
			}
			set(gaugeLastSuccess, age.Seconds(), "jobCode", code)
		}
		return nil
	}
	unregister, err := telemetry.Gauges(r.cfg.MeterProvider, read,
		telemetry.Gauge{Name: gaugeLastSuccess, Help: "How long ago the job last succeeded, in any instance.", Unit: "s"})
	if err != nil {
		r.cfg.Logger.WarnContext(ctx, "the gauges of the jobs are not available", telemetry.Err, err)
		return func() {}
	}
	return func() {
		if err := unregister(); err != nil {
			r.cfg.Logger.WarnContext(ctx, "the gauges of the jobs could not be unregistered", telemetry.Err, err)
		}
	}
}
