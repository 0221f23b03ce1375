package ops

import (
	"context"
	"sync"
	"time"

	"github.com/bluecone-go/bluecone/internal/telemetry"
)

const (
	sampleEvery = 5 * time.Second
	samplesKept = 61 // five minutes of differences
)

// sample is how far the two large tables had grown at a moment.
type sample struct {
	at                    int64 // microseconds by the database's clock
	lastEvent, lastRecord int64
	open                  int64
}

// ring holds the samples of the last minutes, oldest first.
type ring struct {
	mu      sync.Mutex
	samples []sample
}

func (r *ring) add(s sample) {
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
		s.Saved = append(s.Saved, rate(a.at, b.at, b.lastEvent-a.lastEvent))
		s.Done = append(s.Done, rate(a.at, b.at, b.lastRecord-a.lastRecord))
		s.Open = append(s.Open, float64(b.open))
	}
	if n := len(r.samples); n > 1 {
		a, b := r.samples[max(n-1-int(time.Minute/sampleEvery), 0)], r.samples[n-1]
		saved, done = rate(a.at, b.at, b.lastEvent-a.lastEvent), rate(a.at, b.at, b.lastRecord-a.lastRecord)
	}
	return s, saved, done
}

func rate(from, to, n int64) float64 {
	if to <= from {
		return 0
	}
	return max(float64(n)/time.Duration((to-from)*int64(time.Microsecond)).Seconds(), 0)
}

// sample takes one sample, by looking at the ends of the primary keys.
func (o *Ops) sample(ctx context.Context) error {
	var s sample
	err := o.row(ctx, []any{&s.at, &s.lastEvent, &s.lastRecord, &s.open}, "SELECT "+o.d.Micros(o.d.Now)+", COALESCE((SELECT MAX(id) FROM "+eventTable+"), 0), COALESCE((SELECT MAX(id) FROM "+logTable+"), 0), "+
		"(SELECT COUNT(*) FROM (SELECT id FROM "+eventTable+" WHERE status <> 'SENT' AND status IN ('NEW', 'SCHEDULED', 'DISPATCHING', 'FAILED', 'DEAD') LIMIT ?) x)", CountCap+1)
	if err == nil {
		o.ring.add(s)
	}
	return err
}

// sampling takes samples until ctx ends.
func (o *Ops) sampling(ctx context.Context) {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for {
		if err := o.sample(ctx); err != nil && ctx.Err() == nil {
			o.cfg.Logger.DebugContext(ctx, "rates could not be sampled; the next beat tries again", telemetry.Err, err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
