package signals_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consistency"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
	"github.com/bluecone-go/bluecone/reaper"
)

// sums are the counters of a reader by their names, but for those of the job's own runs.
func sums(t *testing.T, reader sdkmetric.Reader) map[string]int64 {
	t.Helper()
	var rm metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &rm))
	got := make(map[string]int64)
	for _, scope := range rm.ScopeMetrics {
		for _, m := range scope.Metrics {
			if sum, ok := m.Data.(metricdata.Sum[int64]); ok && m.Name != "scheduler.runs" {
				for _, p := range sum.DataPoints {
					got[m.Name] += p.Value
				}
			}
		}
	}
	return got
}

// The reaper counts what it released.
func TestReaperCountsReleasedLocks(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		reader := sdkmetric.NewManualReader()
		f := newFixture(t, db, outbox.Config{Logger: silent}, bus.Config{Logger: silent})
		seat := reaper.Task{
			Name: "seat.hold", TTL: time.Minute, Consumer: "Seats",
			Owner: &reaper.Owner{Guard: func(context.Context, bun.Tx, reaper.Aggregate) (bool, error) { return true, nil }},
			Find: func(_ context.Context, _ bun.IDB, q reaper.Query) ([]reaper.Lock, error) {
				if q.After != "" {
					return nil, nil
				}
				return []reaper.Lock{{ID: "1", AggregateType: "ORDER", AggregateID: "1", Age: time.Hour}}, nil
			},
			Release: func(context.Context, bun.Tx, reaper.Lock) (bool, error) { return true, nil },
		}
		job, err := reaper.New(db, f.ob, reaper.Config{
			Logger: silent, MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)),
		}, seat)
		require.NoError(t, err)
		_, err = job.RunOnce(t.Context())
		require.NoError(t, err)
		require.Equal(t, map[string]int64{"reaper.lock.released": 1}, sums(t, reader))
	})
}

// The consistency job counts what was missing and what it saved.
func TestConsistencyCountsMissingAndRepairedEvents(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		reader := sdkmetric.NewManualReader()
		f := newFixture(t, db, outbox.Config{Logger: silent}, bus.Config{Logger: silent})
		check := consistency.Check[string]{
			Name: "order.paid",
			Key:  func(id string) string { return id },
			Find: func(_ context.Context, _ bun.IDB, q consistency.Query) ([]string, error) {
				if q.After != "" {
					return nil, nil
				}
				return []string{"1", "2"}, nil
			},
			Missing: func(_ context.Context, _ bun.IDB, ids []string) ([]string, error) { return ids, nil },
			Repair: func(ctx context.Context, tx bun.Tx, id string) (bool, error) {
				return true, f.ob.Save(ctx, tx, keyedPaid{orderPaid{OrderID: id}})
			},
		}
		job, err := consistency.New(db, consistency.Config{
			Logger: silent, MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)),
		}, check)
		require.NoError(t, err)
		_, err = job.RunOnce(t.Context())
		require.NoError(t, err)
		require.Equal(t, map[string]int64{"consistency.event.missing": 2, "consistency.event.repaired": 2}, sums(t, reader))
	})
}
