package pulled

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/telemetry"
)

// What would be tried again is given up when it is as old as MaxAge, and only that.
func TestADeliveryAsOldAsMaxAgeIsGivenUp(t *testing.T) {
	t.Parallel()
	metrics, err := telemetry.NewMetrics(nil)
	require.NoError(t, err)
	m := deliveries(outside, "a")[0]
	consumer := func(limit time.Duration) *Consumer {
		regs := handler.NewRegistrations()
		regs.Metrics = metrics
		return &Consumer{regs: regs, c: handler.NewConsumer(regs, "C", "C", handler.Config{MaxAge: limit})}
	}
	later, failed := Answer{Outcome: Later, Error: "away", After: time.Second}, Answer{Outcome: Failed, Error: "no"}
	given := func(why string) Answer {
		return Answer{Outcome: Permanent, Error: "given up 2m0s after its first run, because ConsumerConfig.MaxAge is 1m30s: " + why}
	}
	for name, of := range map[string]struct {
		limit, age time.Duration
		a, want    Answer
	}{
		"young":                {90 * time.Second, 89 * time.Second, later, later},
		"old, to be run again": {90 * time.Second, 2 * time.Minute, later, given("away")},
		"old, and failed":      {90 * time.Second, 2 * time.Minute, failed, given("no")},
		"old, and done":        {90 * time.Second, 2 * time.Minute, Answer{}, Answer{}},
		"old, without a limit": {-1, time.Hour, later, later},
		"as old as the default": {0, 24 * time.Hour, later, Answer{
			Outcome: Permanent, Error: "given up 24h0m0s after its first run, because ConsumerConfig.MaxAge is 24h0m0s: away",
		}},
	} {
		got := consumer(of.limit).EndAged(context.Background(), m, of.age, of.a)
		got.After = of.want.After
		require.Equal(t, of.want, got, name)
	}
}
