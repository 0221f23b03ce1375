package pulled

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/eventrow"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/inject"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/telemetry"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }

const (
	inside  = "in.side"  // events whose handler has a transaction
	outside = "out.side" // those whose handler has none
)

// service is a program with a database and the consumer C, whose deliveries come from elsewhere. Its handlers answer what
// answers says, and add a row to a table for each event that they take.
type service struct {
	handler.Access
	t   *testing.T
	db  *bun.DB
	all *handler.Registrations

	mu      sync.Mutex
	answers map[string]error
	panics  string   // at this event
	commits string   // at this event the handler ends the transaction
	calls   []string // events
}

func eachService(t *testing.T, fn func(s *service)) {
	t.Helper()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		var err error
		regs := handler.NewRegistrations()
		s := &service{Access: handler.AccessTo(regs), t: t, db: db, all: regs, answers: make(map[string]error)}
		regs.DB, regs.Tracer = db, telemetry.Tracer(nil)
		regs.Logger = new(testdb.Log).Logger()
		regs.Log, err = store.OpenLog(db)
		require.NoError(t, err)
		regs.Metrics, err = telemetry.NewMetrics(nil)
		require.NoError(t, err)
		_, err = db.ExecContext(t.Context(), "CREATE TABLE effects (event VARCHAR(40))")
		require.NoError(t, err)
		fn(s)
	})
}

// consumer registers C with handlers of some event types.
func (s *service) consumer(types ...string) *Consumer {
	s.t.Helper()
	c := handler.NewConsumer(s.all, "C", "C", handler.Config{Rate: 7, Concurrency: 3, Batch: 20})
	for _, eventType := range types {
		c.Add(&handler.Handler{
			EventType: eventType, Version: 1, Type: reflect.TypeFor[string](), External: eventType == outside, Run: s.handle,
			Decode: func(payload json.RawMessage) (any, error) { return new(string), json.Unmarshal(payload, new(string)) },
		})
	}
	s.all.Consumers = append(s.all.Consumers, c)
	all := Consumers(s)
	require.Len(s.t, all, 1)
	return all[0]
}

func (s *service) handle(ctx context.Context, tx handler.Transaction, ms []*handler.Message) error {
	for _, m := range ms {
		id := m.Event.ID
		s.mu.Lock()
		s.calls = append(s.calls, id)
		answer := s.answers[id]
		s.mu.Unlock()
		if m.Event.Type == outside {
			m.Record.Result = map[string]string{"sent": id}
			return answer
		}
		if id == s.panics {
			panic("no idea")
		}
		if _, err := tx.SQL.ExecContext(ctx, "INSERT INTO effects (event) VALUES ('"+id+"')"); err != nil {
			return err
		}
		if id == s.commits {
			_, _ = tx.SQL.ExecContext(ctx, "COMMIT") // it swallows the refusal
		}
		if answer != nil {
			return answer
		}
		m.Record = handler.Record{Key: "key of " + id, Result: id}
	}
	return nil
}

// called are the events that handlers were called with, in order.
func (s *service) called() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(slices.Values(s.calls))
}

func (s *service) effects() (ids []string) {
	s.t.Helper()
	require.NoError(s.t, s.db.NewRaw("SELECT event FROM effects ORDER BY event").Scan(s.t.Context(), &ids))
	return ids
}

func deliveries(eventType string, ids ...string) (ms []*handler.Message) {
	for i, id := range ids {
		ms = append(ms, &handler.Message{Attempt: 1, Event: &eventrow.Row{
			ID: id, Type: eventType, SchemaVersion: 1, Payload: []byte(`"x"`), AggregateType: "A", AggregateID: fmt.Sprint(i),
		}})
	}
	return ms
}

// outcomes are what has become of deliveries.
func outcomes(answers []Answer) (all []Outcome) {
	for _, a := range answers {
		all = append(all, a.Outcome)
	}
	return all
}

// Deliveries share a transaction, and their results are told. One that comes again is answered by what stands in the log, and its
// handler is not called.
func TestADeliveryThatComesAgainIsNotRunAgain(t *testing.T) {
	t.Parallel()
	eachService(t, func(s *service) {
		c := s.consumer(inside)
		require.NoError(s.t, c.Check(s.t.Context()))
		first := c.Run(s.t.Context(), deliveries(inside, "a", "b"))
		require.Equal(s.t, []Answer{{Result: []byte(`"a"`)}, {Result: []byte(`"b"`)}}, first)
		again := c.Run(s.t.Context(), deliveries(inside, "a", "c"))
		require.Equal(s.t, []Answer{{Result: []byte(`"a"`), isRepeated: true}, {Result: []byte(`"c"`)}}, again)
		require.Equal(s.t, []string{"a", "b", "c"}, s.called())
		require.Equal(s.t, []string{"a", "b", "c"}, s.effects())
		require.Equal(s.t, []Outcome{Success, Success}, outcomes(c.Run(s.t.Context(), deliveries(inside, "a", "b"))), "none is left to run")
	})
}

// One that fails takes no other with it: the batch runs again in halves, and what has failed leaves no effect.
func TestOnlyTheDeliveryThatFailsFails(t *testing.T) {
	t.Parallel()
	eachService(t, func(s *service) {
		c := s.consumer(inside)
		s.answers["b"], s.answers["c"], s.panics = errors.New("no"), &handler.SkipError{Reason: "not ours"}, "d"
		answers := c.Run(s.t.Context(), deliveries(inside, "a", "b", "c", "d", "e"))
		require.Equal(s.t, []Outcome{Success, Failed, Skipped, Failed, Success}, outcomes(answers))
		require.Equal(s.t, "no", answers[1].Error)
		require.Equal(s.t, "not ours", answers[2].Error)
		require.Contains(s.t, answers[3].Error, "no idea")
		require.Equal(s.t, []string{"a", "e"}, s.effects())
	})
}

// A handler that tries to end the transaction fails, also if it swallows the refusal: its mark would stand without what comes after it.
func TestAHandlerDoesNotEndItsTransaction(t *testing.T) {
	t.Parallel()
	eachService(t, func(s *service) {
		c := s.consumer(inside)
		s.commits = "a"
		require.Equal(s.t, []Outcome{Failed}, outcomes(c.Run(s.t.Context(), deliveries(inside, "a"))))
		require.Empty(s.t, s.effects())
	})
}

// Nobody may have heard of a COMMIT: the delivery comes again later, and is found done if it happened.
func TestALostCommitIsAskedOfTheLog(t *testing.T) {
	t.Parallel()
	eachService(t, func(s *service) {
		c := s.consumer(inside)
		lost := func(string, []string) error { return errors.New("nobody heard of it") }
		for id, of := range map[string]struct {
			faults     inject.Faults
			isRepeated bool
		}{"before": {inject.Faults{BeforeCommit: lost}, false}, "after": {inject.Faults{AfterCommit: lost}, true}} {
			s.all.Inject(of.faults)
			require.Equal(s.t, []Answer{{Outcome: Later, After: pauseTrouble, Error: errorOf(id)}}, c.Run(s.t.Context(), deliveries(inside, id)))
			s.all.Inject(inject.Faults{})
			require.Equal(s.t, of.isRepeated, c.Run(s.t.Context(), deliveries(inside, id))[0].isRepeated, id)
		}
		require.Equal(s.t, []string{"after", "before"}, s.effects(), "each once")
	})
}

func errorOf(id string) string {
	if id == "after" {
		return "commit: nobody heard of it"
	}
	return "nobody heard of it"
}

// A handler without a transaction gets its delivery each time that it comes. What cannot be decoded never succeeds.
func TestAHandlerWithoutATransactionRunsEachTime(t *testing.T) {
	t.Parallel()
	eachService(t, func(s *service) {
		c := s.consumer(inside, outside)
		s.answers["bad"] = handler.RetryAfter(errors.New("busy"), time.Hour)
		ms := append(deliveries(outside, "good", "bad"), deliveries(inside, "unreadable", "a")...)
		ms[2].Event.Payload = []byte(`{`)
		answers := c.Run(s.t.Context(), ms)
		require.Equal(s.t, []Outcome{Success, Later, Permanent, Success}, outcomes(answers))
		require.JSONEq(s.t, `{"sent":"good"}`, string(answers[0].Result))
		require.Equal(s.t, time.Hour, answers[1].After)
		require.True(s.t, answers[1].IsAsked)
		c.Run(s.t.Context(), deliveries(outside, "good"))
		require.Equal(s.t, []string{"a", "bad", "good", "good"}, s.called())
		require.False(s.t, c.Joins(ms[0], ms[3]), "one has a transaction")
	})
}

// While the tables are not there the deliveries are run later, and a check says what to do. A consumer without transactions needs none.
func TestTheLogIsNeededForTransactionsOnly(t *testing.T) {
	t.Parallel()
	eachService(t, func(s *service) {
		c := s.consumer(inside)
		_, err := s.db.ExecContext(s.t.Context(), "ALTER TABLE bc_event_consume_log RENAME TO away")
		require.NoError(s.t, err)
		require.ErrorContains(s.t, c.Check(s.t.Context()), "migrations.Up")
		answers := c.Run(s.t.Context(), deliveries(inside, "a"))
		require.Equal(s.t, []Outcome{Later}, outcomes(answers))
		require.Empty(s.t, s.called())
	})
	eachService(t, func(s *service) {
		c := s.consumer(outside)
		_, err := s.db.ExecContext(s.t.Context(), "ALTER TABLE bc_event_consume_log RENAME TO away")
		require.NoError(s.t, err)
		require.NoError(s.t, c.Check(s.t.Context()))
		require.Equal(s.t, []Outcome{Success}, outcomes(c.Run(s.t.Context(), deliveries(outside, "a"))))
	})
}

// What a consumer asked for is told; SQLite has one writer.
func TestAConsumerTellsWhatItAskedFor(t *testing.T) {
	t.Parallel()
	eachService(t, func(s *service) {
		c := s.consumer(inside, outside)
		require.Equal(s.t, "C", c.Key())
		require.Equal(s.t, []string{inside, outside}, c.EventTypes())
		require.InDelta(s.t, 7, c.Rate(), 0)
		batches, most := c.Workers()
		require.Equal(s.t, 20, most)
		want := 3
		if s.all.HasOneWriter() {
			want = 1
		}
		require.Equal(s.t, want, batches)
		c.CountLostLease(s.t.Context())
		c.CountFailedCall(s.t.Context())
		end, err := c.Measure(s.t.Context(), func() int { return 1 })
		require.NoError(s.t, err)
		require.NoError(s.t, end())
	})
}
