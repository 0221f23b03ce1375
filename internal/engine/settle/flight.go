package settle

import (
	"cmp"
	"sync/atomic"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/engine/claim"
	"github.com/bluecone-go/bluecone/internal/engine/registry"
	"github.com/bluecone-go/bluecone/internal/eventrow"
	"github.com/bluecone-go/bluecone/internal/store"
)

// Outcome is what a lane reports of one delivery.
type Outcome int

const (
	// Succeeded means the effect and its SUCCESS row are committed.
	Succeeded Outcome = iota
	// Recorded means the delivery has another row in the consume log.
	Recorded
	// Abandoned means nothing is known to be stored: the event must be claimed again.
	Abandoned
)

// Flight is an event in flight: between its claim and its settling. The goroutine that claimed it routes it, then lanes tell it
// the outcomes of its deliveries, then the goroutine that settles has it.
type Flight struct {
	Row     eventrow.Row
	Lease   claim.Lease
	IsFresh bool // first claim ever: what this instance saw is all there is

	in     *Flights
	needed []string           // keys of the consumers that must have a row when the event is settled
	waits  []string           // of those whose deliveries are to wait in the log
	left   int                // how many of them, from the first, wait for an instance that knows the event's schema version
	routed *registry.Snapshot // by which registry, if that may be a little old
	status Status             // what it was settled as, "" while it is not

	isLost  bool // another instance had taken it over before it was settled
	isRetry bool // a try to settle it has answered an error

	open  atomic.Int32 // deliveries without an outcome, plus one for the dispatch itself
	clean atomic.Bool  // every delivery that does not wait in the log has succeeded here
}

// Route says which consumers must get the event, by their keys, and how many of them are offered it here.
func (f *Flight) Route(needed []string, offered int) {
	f.needed = needed
	f.open.Store(int32(offered) + 1)
}

// Leave notes that the delivery to a consumer is to wait for an instance that knows the event's schema version. It comes
// before any [Flight.Wait].
func (f *Flight) Leave(consumer string) {
	f.Wait(consumer)
	f.left = len(f.waits)
}

// Wait notes that the delivery to a consumer is to wait in the log.
func (f *Flight) Wait(consumer string) { f.waits = append(f.waits, consumer) }

// Refuse notes that the lane of a consumer that was offered the event has not taken it: the delivery is to wait in the log.
func (f *Flight) Refuse(consumer string) {
	f.Wait(consumer)
	f.open.Add(-1) // never the last one: the dispatch itself is still open
}

// Waiting are the deliveries that are to wait in the log.
func (f *Flight) Waiting() []store.Delivery {
	ds := make([]store.Delivery, len(f.waits))
	for i, consumer := range f.waits {
		ds[i] = f.delivery(consumer)
		ds[i].Left = i < f.left
	}
	return ds
}

// bytes is what the event takes in memory, roughly.
func (f *Flight) bytes() int { return len(f.Row.Payload) }

func (f *Flight) delivery(consumer string) store.Delivery {
	return store.Delivery{
		Consumer: consumer, EventID: f.Row.ID, EventType: f.Row.Type, OutboxID: f.Row.OutboxID,
		AggregateType: f.Row.AggregateType, AggregateID: f.Row.AggregateID, TenantID: f.Row.TenantID,
	}
}

// event is what settling needs to know of it, once its deliveries have ended.
func (f *Flight) event() Event {
	return Event{
		Lease: leaseOf(f.Row), EventID: f.Row.ID, Needed: f.needed, Waits: f.waits, Certain: f.IsFresh && f.clean.Load(),
		IsRetry: f.isRetry,
	}
}

func leaseOf(row eventrow.Row) dialect.Pair {
	return dialect.Pair{ID: row.OutboxID, Version: row.LockVersion}
}

func byID(a, b *Flight) int { return cmp.Compare(a.Row.OutboxID, b.Row.OutboxID) }
