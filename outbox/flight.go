package outbox

import (
	"context"
	"sync/atomic"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/eventrow"
)

// flight is an event between its claim and its settling.
type flight struct {
	row    eventrow.Row
	env    *bus.Envelope
	ctx    context.Context //nolint:containedctx // the lease: ends when it is lost
	cancel context.CancelCauseFunc
	needed []string // consumers that must have a row when the event is settled
	fresh  bool     // first claim ever: what this instance saw is all there is

	status Status // what it was settled as, "" while it is not

	open   atomic.Int32 // deliveries without an outcome, plus one for the dispatch itself
	clean  atomic.Bool  // every delivery has succeeded here
	landed func(*flight)
}

func newFlight(row eventrow.Row, landed func(*flight)) *flight {
	f := &flight{row: row, env: bus.EnvelopeOf(row), fresh: row.LockVersion == 1, landed: landed}
	f.ctx, f.cancel = context.WithCancelCause(context.Background())
	f.clean.Store(true)
	return f
}

// done takes the outcome of one delivery; the last one lands the flight.
func (f *flight) done(outcome bus.Outcome) {
	if outcome != bus.Succeeded {
		f.clean.Store(false)
	}
	if f.open.Add(-1) == 0 {
		f.landed(f)
	}
}

func (f *flight) pair() dialect.Pair {
	return dialect.Pair{ID: f.row.OutboxID, Version: f.row.LockVersion}
}

// delivered reports whether the event is SENT for certain, without a look at the log:
// nobody else can have written about a delivery of it.
func (f *flight) delivered() bool { return f.fresh && f.clean.Load() }

func pairsOf(flights []*flight) []dialect.Pair {
	pairs := make([]dialect.Pair, len(flights))
	for i, f := range flights {
		pairs[i] = f.pair()
	}
	return pairs
}
