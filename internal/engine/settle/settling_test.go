package settle_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/bluecone-go/bluecone/internal/engine/budget"
	"github.com/bluecone-go/bluecone/internal/engine/health"
	"github.com/bluecone-go/bluecone/internal/engine/registry"
	"github.com/bluecone-go/bluecone/internal/engine/settle"
	"github.com/bluecone-go/bluecone/internal/eventrow"
	"github.com/bluecone-go/bluecone/internal/faultdb"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/telemetry"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/migrations"
)

// loses is which statement's answer a network loses, once: it was done.
type loses func(s faultdb.Step) bool

// settling is a fixture whose events a [settle.Settling] settles, by way of a network that loses an answer.
type settling struct {
	fixture
	*settle.Settling
	flights  *settle.Flights
	networks atomic.Pointer[loses]
	sent     counter
	lost     counter
	log      bytes.Buffer // of one goroutine
}

// counter sums up what it is told: the SDK is not in this module.
type counter struct {
	noop.Int64Counter

	sum atomic.Int64
}

// Enabled says that somebody looks.
func (c *counter) Enabled(context.Context) bool { return true }

// Add adds.
func (c *counter) Add(_ context.Context, n int64, _ ...metric.AddOption) { c.sum.Add(n) }

func eachSettling(t *testing.T, deleteSent bool, fn func(s *settling)) {
	for _, name := range testdb.Dialects() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &settling{flights: settle.NewFlights(100, 1<<20)}
			db, err := testdb.ConnectHooked(testdb.DSN(t, name), faultdb.Hook{After: s.answer})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, db.Close()) })
			require.NoError(t, migrations.Up(t.Context(), db))
			s.fixture = newFixture(t, db, deleteSent)
			s.begin(db)
			fn(s)
		})
	}
}

func (s *settling) begin(db *bun.DB) {
	logger := slog.New(slog.NewTextHandler(&s.log, &slog.HandlerOptions{Level: slog.LevelInfo}))
	metrics, err := telemetry.NewMetrics(nil)
	require.NoError(s, err)
	metrics.Sent, metrics.LeaseLost = &s.sent, &s.lost
	regs := handler.NewRegistrations()
	regs.DB = db
	log, err := store.OpenLog(db)
	require.NoError(s, err)
	s.Settling = settle.NewSettling(settle.SettlingConfig{
		DB: db, Log: log, Registry: registry.New(store.NewRegistry(s.d, log.Statements()), nil),
		Settler: s.Settler, Meter: settle.NewMeter(metrics, logger), Owner: owner, Lease: time.Minute, Flights: s.flights,
		Outage: health.NewOutage(logger), Budget: budget.New(regs),
	})
}

func (s *settling) answer(_ context.Context, step faultdb.Step) error {
	if l := s.networks.Load(); l != nil && (*l)(step) && s.networks.CompareAndSwap(l, nil) {
		return io.ErrUnexpectedEOF
	}
	return nil
}

// ended takes off and ends an event whose only delivery has this outcome.
func (s *settling) ended(e settle.Event, outcome settle.Outcome) {
	f := s.flights.Begin(eventrow.Row{OutboxID: e.Lease.ID, ID: e.EventID, Type: "a.b", LockVersion: e.Lease.Version}, 0, nil)
	f.Route([]string{"A"}, 1)
	f.Done(settle.Succeeded)
	f.Done(outcome)
}

// settle settles what has ended.
func (s *settling) settle() {
	over := make(chan struct{})
	close(over)
	s.Run(over)
	require.Zero(s, s.flights.Len())
}

// What was settled although nobody heard of it is settled, not taken over.
func TestLostAnswerOfASettleIsNoLostLease(t *testing.T) {
	t.Parallel()
	statement := func(verb string) loses {
		return func(s faultdb.Step) bool { return s.Op == faultdb.Exec && strings.HasPrefix(s.Query, verb) }
	}
	commit := loses(func(s faultdb.Step) bool { return s.Op == faultdb.Commit })
	for name, of := range map[string]struct {
		deleteSent bool
		outcome    settle.Outcome
		network    loses
	}{
		"the UPDATE of what is certain":    {false, settle.Succeeded, statement("UPDATE")},
		"the DELETE of what is certain":    {true, settle.Succeeded, statement("DELETE")},
		"the COMMIT of the rest":           {false, settle.Recorded, commit},
		"the COMMIT of the rest, deleting": {true, settle.Recorded, commit},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachSettling(t, of.deleteSent, func(s *settling) {
				for _, id := range []string{"1", "2"} {
					s.ended(s.event(id, owner, 1, "A", "SUCCESS"), of.outcome)
				}
				s.networks.Store(&of.network)
				s.settle()
				require.Nil(s, s.networks.Load(), "it never came")
				require.NotContains(s, s.log.String(), "taken over")
				require.Zero(s, s.lost.sum.Load())
				require.Equal(s, int64(2), s.sent.sum.Load())
				want := row{Status: "SENT", Version: 2, Sent: true}
				if of.deleteSent {
					want = row{}
				}
				require.Equal(s, want, s.row("1"))
			})
		})
	}
}

// An event that another instance has taken over is counted once, as that, and not as SENT: its new owner counts it.
func TestLostEventsAreNotCountedAsSent(t *testing.T) {
	t.Parallel()
	for name, outcome := range map[string]settle.Outcome{"certain": settle.Succeeded, "to be looked at": settle.Recorded} {
		for _, deleteSent := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				eachSettling(t, deleteSent, func(s *settling) {
					lost := s.event("lost", other, 2, "A", "SUCCESS")
					lost.Lease.Version = 1
					s.ended(lost, outcome)
					s.ended(s.event("mine", owner, 1, "A", "SUCCESS"), outcome)
					s.ended(s.event("rest", owner, 1, "A", "SUCCESS"), settle.Recorded)
					commit := loses(func(s faultdb.Step) bool { return s.Op == faultdb.Commit })
					s.networks.Store(&commit) // it is tried again
					s.settle()
					require.Nil(s, s.networks.Load(), "it never came")
					require.Equal(s, int64(2), s.sent.sum.Load())
					require.Equal(s, int64(1), s.lost.sum.Load())
					require.Equal(s, 1, strings.Count(s.log.String(), "taken over"))
					require.Equal(s, row{Status: "DISPATCHING", Version: 2, LockedBy: other}, s.row("lost"))
				})
			})
		}
	}
}
