package settle

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/engine/budget"
	"github.com/bluecone-go/bluecone/internal/engine/claim"
	"github.com/bluecone-go/bluecone/internal/engine/health"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/telemetry"
)

// spillAfter is how long deliveries that have to wait are held, so that one statement writes more of them into the
// consume log. They cannot run before that anyway.
const spillAfter = Later

// Spilled is an event, and those of its deliveries that have to wait in the log.
type Spilled struct {
	Flight     *Flight
	Deliveries []store.Delivery
}

// SpillerConfig is what a [Spiller] works with.
type SpillerConfig struct {
	DB     *bun.DB
	Log    store.Log
	Logger *slog.Logger
	Budget *budget.Transactions
	Outage *health.Outage
	Limit  time.Duration // how long one write may take
}

// Spiller writes deliveries that have to wait into the consume log, those of a while together. The next claim does not wait for
// it. Until they are written the events are open, so nothing behind them runs. It is safe for concurrent use.
type Spiller struct {
	cfg     SpillerConfig
	filled  chan struct{} // something is held
	writing chan struct{} // the goroutine that writes holds this token

	mu   sync.Mutex
	held []Spilled
}

// NewSpiller returns a spiller that holds nothing.
func NewSpiller(cfg SpillerConfig) *Spiller {
	return &Spiller{cfg: cfg, filled: make(chan struct{}, 1), writing: make(chan struct{}, 1)}
}

// Add holds events until their deliveries are written.
func (p *Spiller) Add(all []Spilled) {
	if len(all) == 0 {
		return
	}
	p.mu.Lock()
	p.held = append(p.held, all...)
	p.mu.Unlock()
	claim.Signal(p.filled)
}

// Run writes what is held, as much at once as there is, until stop is closed.
func (p *Spiller) Run(stop <-chan struct{}) {
	for {
		select {
		case <-p.filled:
		case <-stop:
			return
		}
		select {
		case <-time.After(spillAfter):
		case <-stop:
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), p.cfg.Limit)
		if err := p.Write(ctx); err != nil {
			p.cfg.Logger.Log(ctx, p.cfg.Outage.Level(ctx, err), "deliveries could not be queued; their events are claimed again",
				telemetry.Err, err)
		}
		cancel()
	}
}

// Write writes all that is held. Another goroutine may write already: then this one waits until that one has, or ctx ends. An
// event whose deliveries cannot be written is settled too: settling finds a delivery missing, and the event is claimed again.
func (p *Spiller) Write(ctx context.Context) (err error) {
	select {
	case p.writing <- struct{}{}:
		defer func() { <-p.writing }()
	case <-ctx.Done():
		return ctx.Err()
	}
	for held := p.take(); len(held) > 0; held = p.take() {
		var waiting []store.Delivery
		for _, e := range held {
			waiting = append(waiting, e.Deliveries...)
		}
		err = errors.Join(err, p.write(ctx, waiting))
		for _, e := range held {
			e.Flight.Done(Succeeded) // the dispatch itself
		}
	}
	return err
}

func (p *Spiller) write(ctx context.Context, waiting []store.Delivery) error {
	over, err := p.cfg.Budget.Acquire(ctx)
	if err != nil {
		return err
	}
	defer over()
	return p.cfg.Log.Defer(ctx, p.cfg.DB, waiting, 0)
}

// take takes events whose deliveries are written together.
func (p *Spiller) take() []Spilled {
	p.mu.Lock()
	defer p.mu.Unlock()
	n, rows := 0, 0
	for n < len(p.held) && n < Batch {
		if rows += len(p.held[n].Flight.event().Uncertain()); n > 0 && rows > MostLooks {
			break
		}
		n++
	}
	held := p.held[:n:n]
	p.held = p.held[n:]
	return held
}
