package outbox_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// How long due work waits beside a backlog of NEW events, and under overload: docs/measurements/due-work.md.
//
//	BLUECONE_TEST_MEASURE=1 go test -count=1 -v -p 1 -parallel 1 -timeout 1h -run MeasureDueWork ./outbox | grep -o '|.*'
func TestMeasureDueWork(t *testing.T) { //nolint:paralleltest // it measures
	backlog := testdb.MeasuresWith(t, 100_000)
	overload := time.Duration(backlog) * 1800 * time.Microsecond // three minutes beside the usual backlog
	t.Log("| database | load | kind | falls due | median | 99 of 100 within | slowest |")
	t.Log("|---|---|---|---|---|---|---|")
	for _, dialect := range testdb.Dialects() { //nolint:paralleltest // it measures
		t.Run(dialect+"/backlog", func(t *testing.T) { measureDueWork(t, testdb.Open(t, dialect), "backlog", backlog, 0) })
		t.Run(dialect+"/overload", func(t *testing.T) { measureDueWork(t, testdb.Open(t, dialect), "overload", 5000, overload) })
	}
}

// waits are the delays of due work, by aggregate. A handler that runs again after a deadlock counts once, with its last run.
type waits struct {
	mu   sync.Mutex
	took map[string]time.Duration
}

func (w *waits) note(aggregate string, took time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.took[aggregate] = took
}

func (w *waits) noted() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.took)
}

// of are the delays of a kind, the shortest first.
func (w *waits) of(kind string) (took []time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for aggregate, t := range w.took {
		if k, _, _ := strings.Cut(aggregate, "-"); k == kind {
			took = append(took, t)
		}
	}
	slices.Sort(took)
	return took
}

func measureDueWork(t *testing.T, db *bun.DB, load string, backlog int, overload time.Duration) {
	t.Helper()
	f := newFixture(t, db)
	f.effects()
	var handled atomic.Int64
	w := &waits{took: make(map[string]time.Duration)}
	due := new(sync.Map) // when each aggregate fell due
	bus.On(f.bus.Consumer("A", bus.ConsumerConfig{}), func(ctx context.Context, tx bun.Tx, m bus.Message[orderPaid]) error {
		if at, ok := due.Load(m.AggregateID); ok {
			w.note(m.AggregateID, time.Since(at.(time.Time))) //nolint:forcetypeassert // nothing else is stored
		} else if overload > 0 { // as much as is done comes in
			if err := f.ob.Save(ctx, tx, inAggregates("backlog-"+m.ID, 1)...); err != nil {
				return err
			}
		}
		handled.Add(1)
		return effect(ctx, tx, m, m.Payload.Seq)
	})
	f.once()
	kinds := []int{1, 2, 3, 4, 5}
	const rounds = 100
	for _, kind := range kinds {
		for round := range rounds {
			f.save(inAggregates(fmt.Sprintf("%s-%d", workKinds[kind].name, round), 1)...)
		}
		if workKinds[kind].name == "waiting" { // a publisher that starts wakes them
			f.turnInto(1, "waiting-%")
			continue
		}
		f.turnInto(kind, workKinds[kind].name+"-%")
	}
	var rows []struct{ AggregateID, EventID string }
	require.NoError(t, db.NewRaw("SELECT aggregate_id, event_id FROM bc_outbox_event").Scan(t.Context(), &rows))
	ids := make(map[string]string, len(rows))
	for _, r := range rows {
		ids[r.AggregateID] = r.EventID
	}
	now := map[string]string{
		"mysql": "UTC_TIMESTAMP(6)", "pg": "now()", "sqlite": "(strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')",
	}[db.Dialect().Name().String()]
	for i := range backlog / 500 {
		f.save(inAggregates(fmt.Sprintf("backlog-%d", i), 500)...)
	}
	f.run(outbox.PublisherConfig{})
	f.eventually(func() bool { return handled.Load() > 500 }, "the backlog is being worked off")
	began, fell := time.Now(), 0
	for round := range rounds {
		pause := 40 * time.Millisecond
		if overload > 0 {
			pause = overload / rounds
		}
		<-time.After(pause)
		if f.count("SELECT COUNT(*) FROM (SELECT 1 FROM bc_outbox_event WHERE status = 'NEW' LIMIT 1) AS x") == 0 {
			t.Logf("the backlog was over after %d rounds, %v", round, time.Since(began))
			break
		}
		for _, kind := range kinds {
			aggregate := fmt.Sprintf("%s-%d-0", workKinds[kind].name, round)
			id := ids[aggregate]
			due.Store(aggregate, time.Now())
			if workKinds[kind].name == "waiting" {
				require.NoError(t, f.turnIntoWaiting(id, now))
			}
			for _, table := range []string{"bc_event_consume_log", "bc_outbox_event"} {
				f.exec("UPDATE "+table+" SET next_retry_at = "+now+" WHERE event_id = ? AND next_retry_at = '"+someday+"'", id)
			}
			due.Store(aggregate, time.Now()) // the statement may have waited
			fell++
		}
	}
	f.eventually(func() bool { return w.noted() == fell }, "all that fell due is done")
	t.Logf("%v, %d left of the backlog", time.Since(began).Round(time.Second),
		f.count("SELECT COUNT(*) FROM bc_outbox_event WHERE status = 'NEW'"))
	for _, kind := range kinds {
		if took := w.of(workKinds[kind].name); len(took) > 0 {
			t.Logf("| %s | %s | %s | %d | %d ms | %d ms | %d ms |", testdb.Server(t, db), load, workKinds[kind].name, len(took),
				took[len(took)/2].Milliseconds(), took[(len(took)-1)*99/100].Milliseconds(), took[len(took)-1].Milliseconds())
		}
	}
}

// turnIntoWaiting makes a delayed event one whose delivery waits and is due.
func (f *fixture) turnIntoWaiting(eventID, now string) error {
	return f.db.RunInTx(f.t.Context(), nil, func(ctx context.Context, tx bun.Tx) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO bc_event_consume_log (consumer_name, event_id, event_type, status, outbox_id, "+
			"aggregate_type, aggregate_id, attempts, lock_version, next_retry_at) "+
			"SELECT 'A', event_id, event_type, 'PENDING', id, aggregate_type, aggregate_id, "+
			"0, 1, "+now+" FROM bc_outbox_event WHERE event_id = ?", eventID)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "UPDATE bc_outbox_event SET "+workKinds[3].event+", next_retry_at = "+now+" WHERE event_id = ?", eventID)
		return err
	})
}
