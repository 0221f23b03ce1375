package outbox

import (
	"cmp"
	"sync/atomic"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/engine/delivery"
	"github.com/bluecone-go/bluecone/internal/engine/registry"
	"github.com/bluecone-go/bluecone/internal/engine/settle"
	"github.com/bluecone-go/bluecone/internal/eventrow"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/store"
)

// flight is an event between its claim and its settling.
type flight struct {
	row     eventrow.Row
	lease   delivery.Lease
	decoded handler.Payloads
	needed  []string           // keys of the consumers that must have a row when the event is settled
	waits   []string           // of those whose deliveries are to wait in the log
	left    int                // how many of them, from the first, wait for an instance that knows the event's schema version
	fresh   bool               // first claim ever: what this instance saw is all there is
	routed  *registry.Snapshot // by which registry, if that may be a little old

	status Status // what it was settled as, "" while it is not

	open   atomic.Int32 // deliveries without an outcome, plus one for the dispatch itself
	clean  atomic.Bool  // every delivery that does not wait in the log has succeeded here
	landed func(*flight)

	report func(delivery.Outcome) // done
}

func newFlight(row eventrow.Row, c claim, landed func(*flight)) *flight {
	f := &flight{row: row, fresh: row.LockVersion == 1, landed: landed}
	if f.report = f.done; c.handed {
		f.routed = c.Registry
	}
	f.clean.Store(true)
	f.lease.Version = row.LockVersion
	f.lease.Extend(c.Until)
	return f
}

// bytes is what the event takes in memory, roughly.
func (f *flight) bytes() int { return len(f.row.Payload) }

// done takes the outcome of one delivery; the last one lands the flight.
func (f *flight) done(outcome delivery.Outcome) {
	if outcome != delivery.Succeeded {
		f.clean.Store(false)
	}
	if f.open.Add(-1) == 0 {
		f.landed(f)
	}
}

// wait notes that the delivery to a consumer is to wait in the log.
func (f *flight) wait(consumer string) {
	f.waits = append(f.waits, consumer)
}

// leave notes that the delivery to a consumer is to wait for an instance that knows the event's schema version. It comes
// before any wait.
func (f *flight) leave(consumer string) {
	f.wait(consumer)
	f.left = len(f.waits)
}

func (f *flight) delivery(consumer string) store.Delivery {
	return store.Delivery{
		Consumer: consumer, EventID: f.row.ID, EventType: f.row.Type, OutboxID: f.row.OutboxID,
		AggregateType: f.row.AggregateType, AggregateID: f.row.AggregateID, TenantID: f.row.TenantID,
	}
}

func (f *flight) pair() dialect.Pair {
	return dialect.Pair{ID: f.row.OutboxID, Version: f.row.LockVersion}
}

// event is what settling needs to know of it, once its deliveries have ended.
func (f *flight) event() settle.Event {
	return settle.Event{Lease: f.pair(), EventID: f.row.ID, Needed: f.needed, Waits: f.waits, Certain: f.fresh && f.clean.Load()}
}

func byID(a, b *flight) int { return cmp.Compare(a.row.OutboxID, b.row.OutboxID) }

func pairsOf(flights []*flight) []dialect.Pair {
	pairs := make([]dialect.Pair, len(flights))
	for i, f := range flights {
		pairs[i] = f.pair()
	}
	return pairs
}
