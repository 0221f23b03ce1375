package delivery

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/engine/claim"
	"github.com/bluecone-go/bluecone/internal/eventrow"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/store"
)

// queuedLane is a lane that does not run what it has.
func queuedLane(ds ...*delivery) *lane {
	c := &handler.Consumer{Name: "A", Config: handler.Config{}.WithDefaults()}
	ln := &lane{
		c: c, l: &Lanes{regs: &handler.Registrations{}}, limit: 1, window: 200, queue: ds,
		busy: make(map[store.Aggregate]struct{}),
	}
	ln.retries = &retryQueue{l: ln.l, c: c, ln: ln, fitting: mostWaiting}
	return ln
}

func waiting(kind claim.Kind, id int64, aggregate string) *delivery {
	d := &delivery{kind: kind, Message: handler.Message{Event: &eventrow.Row{OutboxID: id, AggregateID: aggregate}}}
	if kind > claim.Expired {
		d.lease = &store.Leased{ID: id}
	}
	return d
}

// A queue that is full of new events has room for each state that deliveries wait in, and runs them in turn.
func TestDueDeliveriesHaveRoomAndTurns(t *testing.T) {
	t.Parallel()
	var ds []*delivery
	for i := range 1000 {
		ds = append(ds, waiting(claim.New, int64(i+1), time.Duration(i).String()))
	}
	ln := queuedLane(ds...)
	require.LessOrEqual(t, ln.retries.roomInQueue().Pending, 8, "a few, before it is known how quick it is")
	ln.ahead.Observe(1000, time.Second)
	require.Equal(t, store.Limits{Pending: mostWaiting, Failed: mostRetried, Processing: mostRetried}, ln.retries.roomInQueue())
	ln.queue = append(ln.queue, waiting(claim.Retries, 2001, "r"), waiting(claim.Scheduled, 2002, "s"))
	for range ln.depth() {
		ln.queue = append(ln.queue, waiting(claim.Deliveries, 3000, "w"))
	}
	require.Equal(t, store.Limits{Failed: mostRetried, Processing: mostRetried}, ln.retries.roomInQueue())
	var order []claim.Kind
	for range 6 {
		order = append(order, ln.take(10)[0].kind)
		clear(ln.busy)
	}
	require.Equal(t, []claim.Kind{claim.New, claim.Scheduled, claim.Deliveries, claim.Retries, claim.New, claim.Deliveries}, order)
}

// Retries that are refused again and again, because they wait for others, have turns of one transaction: of a whole batch
// each would run alone, and take as long as many that have never run.
func TestRetriesThatAreRefusedHaveShortTurns(t *testing.T) {
	t.Parallel()
	var ds []*delivery
	for i := range int64(100) {
		ds = append(ds, waiting(claim.Retries, 2*i, time.Duration(2*i).String()), waiting(claim.Deliveries, 2*i+1, time.Duration(2*i+1).String()))
	}
	ln := queuedLane(ds...)
	ln.wary.Refused(false, 2)
	for range 3 {
		for kind, size := range map[claim.Kind]int{claim.Deliveries: 10, claim.Retries: 1} {
			require.Len(t, ln.takeTurn(claim.Of(kind), 10), size)
		}
	}
	for range 200 {
		ln.wary.Accepted(false, 1)
	}
	require.Len(t, ln.takeTurn(claim.Of(claim.Retries), 10), 10, "they have succeeded")
}

// A delivery overtakes later events of its aggregate, which could not run before it, and nothing else of its aggregate.
func TestRetryOvertakesOnlyWhatIsLater(t *testing.T) {
	t.Parallel()
	ln := queuedLane(waiting(claim.New, 8, "x"), waiting(claim.New, 5, "y"), waiting(claim.Retries, 7, "x"), waiting(claim.Retries, 6, "y"))
	ln.turns.Take(claim.New)
	batch := ln.take(10)
	require.Len(t, batch, 1)
	require.EqualValues(t, 7, batch[0].Event.OutboxID)
	ln = queuedLane(waiting(claim.New, 5, "y"), waiting(claim.Scheduled, 4, "y"))
	ln.turns.Take(claim.New)
	require.EqualValues(t, 5, ln.take(10)[0].Event.OutboxID, "events keep the order in which they were claimed")
}
