package settle_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/engine/budget"
	"github.com/bluecone-go/bluecone/internal/engine/health"
	"github.com/bluecone-go/bluecone/internal/engine/settle"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/telemetry"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

// background is what roll-ups, the sweep and the spiller work with beside the settler.
type background struct {
	fixture
	logged testdb.Log
	meter  *settle.Meter
	budget *budget.Transactions
	outage *health.Outage
}

func newBackground(t *testing.T, db *bun.DB) *background {
	t.Helper()
	b := &background{fixture: newFixture(t, db, false)}
	metrics, err := telemetry.NewMetrics(nil)
	require.NoError(t, err)
	regs := handler.NewRegistrations()
	regs.DB = db
	b.meter, b.budget, b.outage = settle.NewMeter(metrics, b.logged.Logger()), budget.New(regs), health.NewOutage(b.logged.Logger())
	return b
}

// The event of a retried delivery that has ended is brought up to date, and a DEAD one is an error in the log.
func TestTheEventOfAnEndedDeliveryIsUpToDate(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newBackground(t, db)
		r := settle.NewRollUps(f.Settler, f.meter, f.budget, f.outage, time.Minute)
		f.settled("done", "FAILED", "A", "SUCCESS")
		f.settled("dead", "FAILED", "A", "DEAD")
		r.Ended(t.Context(), []string{"done", "dead"})
		require.Equal(t, int64(2), r.Deliveries())
		require.Equal(t, "SENT", f.row("done").Status)
		require.Equal(t, "DEAD", f.row("dead").Status)
		require.Contains(t, f.logged.String(), "event is DEAD and waits for an operator")

		f.settled("late", "FAILED", "A", "SUCCESS")
		ctx, end := context.WithCancel(t.Context())
		end()
		r.Ended(ctx, []string{"late"})
		require.Equal(t, int64(3), r.Deliveries())
		require.Contains(t, f.logged.String(), "the sweep does it")
		require.NoError(t, f.NewSweep().Run(t.Context(), f.meter, f.budget))
		require.Equal(t, "SENT", f.row("late").Status)
	})
}

// A sweep that cannot look says so.
func TestASweepThatCannotLookIsAnError(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newBackground(t, db)
		ctx, end := context.WithCancel(t.Context())
		end()
		require.ErrorContains(t, f.NewSweep().Run(ctx, f.meter, f.budget), "sweep: ")
	})
}

// Deliveries that have to wait are written into the consume log a moment later, those of a while together. From then on the dispatch of
// their events is over.
func TestSpilledDeliveriesAreWritten(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newBackground(t, db)
		s := f.spiller()
		flights := settle.NewFlights(10, 1<<20)
		s.Add(nil)
		for _, id := range []string{"1", "2"} {
			s.Add([]settle.Spilled{f.spilled(flights, id)})
		}
		stop, over := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(over)
			s.Run(stop)
		}()
		testdb.Eventually(t, func() bool {
			return testdb.Count(t, db, "SELECT COUNT(*) FROM bc_event_consume_log WHERE status = 'PENDING'") == 2
		}, "they are written")
		close(stop)
		<-over
		require.NoError(t, s.Write(t.Context()), "nothing is left")
		require.Empty(t, f.logged.String())
	})
}

// What cannot be written is settled all the same: the event lacks a delivery, and is claimed again.
func TestWhatCannotBeSpilledIsClaimedAgain(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newBackground(t, db)
		s := f.spiller()
		f.exec("ALTER TABLE bc_event_consume_log RENAME TO away")
		s.Add([]settle.Spilled{f.spilled(settle.NewFlights(10, 1<<20), "1")})
		stop, over := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(over)
			s.Run(stop)
		}()
		testdb.Eventually(t, func() bool { return f.logged.String() != "" }, "it is logged")
		close(stop)
		<-over
		require.Contains(t, f.logged.String(), "deliveries could not be queued; their events are claimed again")
	})
}

func (b *background) spiller() *settle.Spiller {
	log, err := store.OpenLog(b.db)
	require.NoError(b, err)
	return settle.NewSpiller(settle.SpillerConfig{
		DB: b.db, Log: log, Logger: b.logged.Logger(), Budget: b.budget, Outage: b.outage, Limit: time.Minute,
	})
}

// spilled is an event with one delivery, which has to wait in the log.
func (b *background) spilled(flights *settle.Flights, id string) settle.Spilled {
	e := b.event(id, owner, 1)
	f := flights.Begin(rowOf(e), 0, nil)
	f.Route([]string{"A"}, 0)
	f.Wait("A")
	return settle.Spilled{Flight: f, Deliveries: f.Waiting()}
}
