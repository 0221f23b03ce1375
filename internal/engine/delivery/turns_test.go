package delivery

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/engine/budget"
	"github.com/bluecone-go/bluecone/internal/engine/claim"
	"github.com/bluecone-go/bluecone/internal/engine/flow"
	"github.com/bluecone-go/bluecone/internal/engine/registry"
	"github.com/bluecone-go/bluecone/internal/eventrow"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/store"
)

// queuedLane is a lane that does not run what it has.
func queuedLane(ds ...*delivery) *lane {
	c := &handler.Consumer{Name: "A", Config: handler.Config{}.WithDefaults()}
	ln := idleLane(c, 1)
	ln.queue.ds = ds
	return ln
}

// idleLane is a lane that nothing is paused for.
func idleLane(c *handler.Consumer, limit int) *lane {
	return newLane(&Lanes{regs: &handler.Registrations{}, cfg: Config{Budget: &budget.Transactions{}, Roster: &registry.Roster{}}}, c, limit)
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
	ln.speed.Prefetch.Observe(1000, time.Second)
	require.Equal(t, claim.Limits{Pending: mostWaiting, Failed: mostRetried, Processing: mostRetried}, ln.retries.roomInQueue())
	ln.queue.ds = append(ln.queue.ds, waiting(claim.Retries, 2001, "r"), waiting(claim.Scheduled, 2002, "s"))
	for range ln.retries.leaseLimit() {
		ln.queue.ds = append(ln.queue.ds, waiting(claim.Deliveries, 3000, "w"))
	}
	require.Equal(t, claim.Limits{Failed: mostRetried, Processing: mostRetried}, ln.retries.roomInQueue())
	var order []claim.Kind
	for range 6 {
		order = append(order, ln.queue.take(10, &ln.speed.Parts, false)[0].kind)
		clear(ln.queue.busy)
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
	again := flow.Group{Again: true}
	ln.speed.Parts.Shrink(again, 2)
	for range 3 {
		for kind, size := range map[claim.Kind]int{claim.Deliveries: 10, claim.Retries: 1} {
			require.Len(t, ln.queue.takeTurn(claim.Of(kind), 10, &ln.speed.Parts), size)
		}
	}
	for range 200 {
		ln.speed.Parts.Grow(again, 1)
	}
	require.Len(t, ln.queue.takeTurn(claim.Of(claim.Retries), 10, &ln.speed.Parts), 10, "they have succeeded")
}

// Of a type that is refused again and again a batch has nothing else, and so the others share their transactions as before. Within
// an aggregate the order stays.
func TestARefusedTypeHasBatchesOfItsOwn(t *testing.T) {
	t.Parallel()
	of := func(eventType string, id int64, aggregate string) *delivery {
		d := waiting(claim.New, id, aggregate)
		d.Event.Type = eventType
		return d
	}
	ln := queuedLane(of("paid", 1, "p"), of("refunded", 2, "q"), of("paid", 3, "r"), of("canceled", 4, "q"), of("refunded", 5, "s"),
		of("canceled", 6, "t"))
	ids := func(ds []*delivery) (ids []int64) {
		for _, d := range ds {
			ids = append(ids, d.Event.OutboxID)
		}
		return ids
	}
	all := ln.queue.ds
	require.Equal(t, 6, ln.together(all))
	ln.refused(all, all[1])
	require.Equal(t, 1, ln.together(all), "up to the next refund")
	require.Equal(t, 1, ln.together(all[1:]))
	require.Equal(t, 2, ln.together(all[2:]))
	take := func() []int64 { return ids(ln.queue.take(10, &ln.speed.Parts, false)) }
	require.Equal(t, []int64{1, 3, 6}, take(), "4 waits behind 2, of its aggregate")
	require.Equal(t, []int64{2, 5}, take())
	clear(ln.queue.busy)
	require.Equal(t, []int64{4}, take())
}

// A delivery overtakes later events of its aggregate, which could not run before it, and nothing else of its aggregate.
func TestRetryOvertakesOnlyWhatIsLater(t *testing.T) {
	t.Parallel()
	ln := queuedLane(waiting(claim.New, 8, "x"), waiting(claim.New, 5, "y"), waiting(claim.Retries, 7, "x"), waiting(claim.Retries, 6, "y"))
	ln.queue.turns.Take(claim.New)
	batch := ln.queue.take(10, &ln.speed.Parts, false)
	require.Len(t, batch, 1)
	require.EqualValues(t, 7, batch[0].Event.OutboxID)
	ln = queuedLane(waiting(claim.New, 5, "y"), waiting(claim.Scheduled, 4, "y"))
	ln.queue.turns.Take(claim.New)
	require.EqualValues(t, 5, ln.queue.take(10, &ln.speed.Parts, false)[0].Event.OutboxID, "events keep the order in which they were claimed")
}

// A delivery that was put back, and that is claimed again when later ones of its aggregate are queued already, comes before these
// in their batch. Nothing else would find that: the question of the order is asked when all of a batch are marked.
func TestBatchKeepsTheOrderOfEachAggregate(t *testing.T) {
	t.Parallel()
	for _, kind := range []claim.Kind{claim.New, claim.Deliveries, claim.Retries, claim.Orphans} {
		ln := queuedLane(waiting(kind, 10, "a"), waiting(kind, 11, "a"), waiting(kind, 5, "b"))
		ln.queue.add([]*delivery{waiting(kind, 9, "a"), waiting(kind, 12, "a")})
		var got []int64
		for _, d := range ln.queue.take(10, &ln.speed.Parts, false) {
			if d.Event.AggregateID == "a" {
				got = append(got, d.Event.OutboxID)
			}
		}
		require.Equal(t, []int64{9, 10, 11, 12}, got, kind)
	}
}
