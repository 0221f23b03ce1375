package ops

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/bluecone-go/bluecone/internal/store/view"
	"github.com/bluecone-go/bluecone/internal/telemetry"
)

const (
	sampleEvery = 5 * time.Second
	samplesKept = 61 // five minutes of differences
)

// ring holds the samples of the last minutes, oldest first.
type ring struct {
	mu      sync.Mutex
	samples []view.Growth
}

func (r *ring) add(s view.Growth) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.samples = append(r.samples, s)
	r.samples = r.samples[max(len(r.samples)-samplesKept, 0):]
}

// series turns samples into rates, and tells those of the last minute.
func (r *ring) series() (s Series, saved, done float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s = Series{Step: sampleEvery, Saved: []float64{}, Done: []float64{}, Open: []float64{}}
	for i := 1; i < len(r.samples); i++ {
		a, b := r.samples[i-1], r.samples[i]
		s.Saved = append(s.Saved, rate(a.At, b.At, b.LastEvent-a.LastEvent))
		s.Done = append(s.Done, rate(a.At, b.At, b.LastDelivery-a.LastDelivery))
		s.Open = append(s.Open, float64(b.Open))
	}
	if n := len(r.samples); n > 1 {
		a, b := r.samples[max(n-1-int(time.Minute/sampleEvery), 0)], r.samples[n-1]
		saved, done = rate(a.At, b.At, b.LastEvent-a.LastEvent), rate(a.At, b.At, b.LastDelivery-a.LastDelivery)
	}
	return s, saved, done
}

func rate(from, to, n int64) float64 {
	if to <= from {
		return 0
	}
	return max(float64(n)/time.Duration((to-from)*int64(time.Microsecond)).Seconds(), 0)
}

// sample takes one sample.
func (v *overviews) sample(ctx context.Context) error {
	s, err := view.Grown(ctx, v.access.sql, CountCap+1)
	if err == nil {
		v.ring.add(s)
	}
	return err
}

// sampleRates takes samples until ctx ends.
func (v *overviews) sampleRates(ctx context.Context, log *slog.Logger) {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for {
		if err := v.sample(ctx); err != nil && ctx.Err() == nil {
			log.DebugContext(ctx, "rates could not be sampled; it is tried again in a moment", telemetry.Err, err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
