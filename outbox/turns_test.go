package outbox_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// workKinds are the kinds of due work: how an event that is NEW becomes one of the kind, due at a time. The log's kinds
// have their row in the consume log.
var workKinds = []struct{ name, event, delivery string }{
	{"new", "", ""},
	{"delayed", "status = 'SCHEDULED'", ""},
	{"expired", "status = 'DISPATCHING', locked_by = 'gone', lock_version = 1", ""},
	{"waiting", "status = 'FAILED', lock_version = 1", "PENDING"},
	{"retried", "status = 'FAILED', lock_version = 1", "FAILED"},
	{"orphaned", "status = 'FAILED', lock_version = 1", "PROCESSING"},
}

const someday = "2100-01-01 00:00:00.000000"

// turnInto makes the NEW events of some aggregates work of a kind that is due some day.
func (f *fixture) turnInto(kind int, aggregates string) {
	f.t.Helper()
	k := workKinds[kind]
	if k.event == "" {
		return
	}
	if k.delivery != "" {
		f.exec("INSERT INTO bc_event_consume_log (consumer_name, event_id, event_type, status, outbox_id, aggregate_type, aggregate_id, "+
			"attempts, locked_by, lock_version, next_retry_at) "+
			"SELECT 'A', event_id, event_type, ?, id, aggregate_type, aggregate_id, ?, ?, 1, '"+someday+
			"' FROM bc_outbox_event WHERE status = 'NEW' AND aggregate_id LIKE ?",
			k.delivery, map[string]int{"PENDING": 0, "FAILED": 1, "PROCESSING": 1}[k.delivery],
			map[string]any{"PENDING": nil, "FAILED": nil, "PROCESSING": "gone"}[k.delivery], aggregates)
	}
	f.exec("UPDATE bc_outbox_event SET "+k.event+", next_retry_at = '"+someday+"' WHERE status = 'NEW' AND aggregate_id LIKE ?", aggregates)
}

// fallDue makes what waits for some day due now.
func (f *fixture) fallDue(ctx context.Context, db bun.IDB, aggregates string) error {
	now := map[string]string{
		"mysql": "UTC_TIMESTAMP(6)", "pg": "now()", "sqlite": "(strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')",
	}[f.db.Dialect().Name().String()]
	for _, table := range []string{"bc_event_consume_log", "bc_outbox_event"} {
		_, err := db.ExecContext(ctx, "UPDATE "+table+" SET next_retry_at = "+now+" WHERE next_retry_at = '"+someday+"' AND aggregate_id "+
			"LIKE ?", aggregates)
		if err != nil {
			return err
		}
	}
	return nil
}

// However long the backlog of one kind of due work is, each other kind has its turn: what falls due while the backlog
// is worked off comes before most of it, from the database and within the lane.
func TestBacklogStarvesNoOtherKindOfDueWork(t *testing.T) {
	t.Parallel()
	for backlog := range workKinds {
		t.Run(workKinds[backlog].name, func(t *testing.T) {
			t.Parallel()
			testdb.Each(t, func(t *testing.T, db *bun.DB) { backlogBeside(t, db, backlog) })
		})
	}
}

func backlogBeside(t *testing.T, db *bun.DB, backlog int) {
	t.Helper()
	const many, begun, few = 2000, 300, 3 // events in the backlog, done when the rest falls due, and of each other kind
	f := newFixture(t, db)
	f.effects()
	var handled atomic.Int64
	var fell atomic.Bool
	bus.On(f.bus.Consumer("A", bus.ConsumerConfig{Concurrency: 1}), func(ctx context.Context, tx bun.Tx, m bus.Message[orderPaid]) error {
		select {
		case <-time.After(4 * time.Millisecond):
		case <-ctx.Done():
		}
		if handled.Add(1) >= begun && !fell.Swap(true) {
			if err := f.fallDue(ctx, tx, "due-%"); err != nil {
				return err
			}
			if workKinds[backlog].event != "" {
				if err := f.ob.Save(ctx, tx, inAggregates("due-new", few)...); err != nil {
					return err
				}
			}
		}
		return effect(ctx, tx, m, m.Payload.Seq)
	})
	f.once() // the consumer is registered
	for kind, k := range workKinds {
		if kind != backlog && k.event != "" {
			f.save(inAggregates("due-"+k.name, few)...)
			f.turnInto(kind, "due-%")
		}
	}
	for i := range many / 500 {
		f.save(inAggregates(fmt.Sprintf("backlog-%d", i), 500)...)
	}
	f.turnInto(backlog, "backlog-%")
	require.NoError(t, f.fallDue(t.Context(), db, "backlog-%"))
	f.run(outbox.PublisherConfig{})
	for kind, k := range workKinds {
		if kind == backlog {
			continue
		}
		like := "due-" + k.name + "%"
		f.eventually(func() bool { return f.count("SELECT COUNT(*) FROM effect WHERE aggregate LIKE ?", like) == few }, k.name+" work is done")
		before := f.count("SELECT COUNT(*) FROM effect WHERE aggregate LIKE 'backlog%' AND id < (SELECT MAX(id) FROM effect "+
			"WHERE aggregate LIKE ?)", like)
		t.Logf("%s work came after %d of %d", k.name, before, many)
		require.Less(t, before, many*3/4, "%s work beside a backlog of %s work", k.name, workKinds[backlog].name)
	}
}

// inAggregates are n events, each of an aggregate of its own.
func inAggregates(prefix string, n int) []bus.Event {
	events := make([]bus.Event, n)
	for i := range events {
		events[i] = orderPaid{OrderID: fmt.Sprintf("%s-%d", prefix, i)}
	}
	return events
}
