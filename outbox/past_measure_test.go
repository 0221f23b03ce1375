package outbox_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// How fast a new consumer is given a million past events, and how long live events take meanwhile: docs/measurements/past.md.
//
//	BLUECONE_TEST_MEASURE=1 go test -count=1 -v -p 1 -parallel 1 -timeout 2h -run MeasureThePast ./outbox | grep -o '|.*'
func TestMeasureThePast(t *testing.T) { //nolint:paralleltest // it measures
	past := testdb.MeasuresWith(t, 1_000_000)
	t.Log("| database | past events | took | events/s | live, to the other | 99 of 100 within | live, to the new one | 99 of 100 within |")
	t.Log("|---|---|---|---|---|---|---|---|")
	for _, dialect := range testdb.Dialects() { //nolint:paralleltest // it measures
		t.Run(dialect, func(t *testing.T) { measureThePast(t, testdb.Open(t, dialect), past) })
	}
}

func measureThePast(t *testing.T, db *bun.DB, past int) {
	t.Helper()
	const aggregates = 10_000
	old := newFixture(t, db)
	old.registered("Old")
	old.past(aggregates, past/aggregates)

	delays := &liveDelays{took: make(map[string][]time.Duration)}
	instance := func() *fixture {
		f := newFixture(t, db)
		for name, cfg := range map[string]bus.ConsumerConfig{"Old": {}, "Late": {StartFrom: bus.Beginning()}} {
			bus.On(f.bus.Consumer(name, cfg), func(ctx context.Context, tx bun.Tx, m bus.Message[orderPaid]) error {
				if strings.HasPrefix(m.AggregateID, "live") {
					delays.note(name, time.Since(m.CreatedAt))
				}
				return effect(ctx, tx, m, m.Payload.Seq)
			})
		}
		return f
	}
	late := func(f *fixture) int {
		return f.count("SELECT COALESCE(SUM(done), 0) FROM bc_bulk_operation WHERE consumer_name = 'Late'")
	}
	first := instance()
	began := time.Now()
	stop, ended := first.begin(outbox.PublisherConfig{})
	first.eventually(func() bool { return late(first) > past/10 }, "a tenth of the past is given")
	stop() // and another goes on with it
	require.NoError(t, <-ended)

	f := instance()
	f.run(outbox.PublisherConfig{})
	var wg sync.WaitGroup
	ctx, done := context.WithCancel(t.Context())
	wg.Go(func() { f.saveLive(ctx) })
	require.Eventually(t, func() bool {
		return f.count("SELECT COUNT(*) FROM bc_bulk_operation WHERE consumer_name = 'Late' AND state = 'DONE'") == 1
	}, time.Hour, 250*time.Millisecond, "all of the past is given")
	done()
	wg.Wait()
	require.Eventually(t, func() bool {
		return f.count("SELECT COUNT(*) FROM (SELECT 1 FROM bc_outbox_event WHERE status <> 'SENT' LIMIT 1) AS x") == 0
	}, time.Hour, 250*time.Millisecond, "everything is delivered")
	took := time.Since(began)

	saved := f.count("SELECT COUNT(*) FROM bc_outbox_event")
	require.Equal(t, saved, f.count("SELECT COUNT(*) FROM effect WHERE consumer = 'Late'"), "each once")
	require.Zero(t, f.count("SELECT COUNT(*) FROM (SELECT seq - COALESCE(LAG(seq) OVER (PARTITION BY aggregate ORDER BY id), -1) AS step "+
		"FROM effect WHERE consumer = 'Late') AS x WHERE step <> 1"), "in the order of each aggregate")
	t.Logf("| %s | %d | %v | %.0f | %s | %s |", testdb.Server(t, db), past, took.Round(time.Second), float64(past)/took.Seconds(),
		delays.of("Old"), delays.of("Late"))
}

// past makes events that were delivered to the consumer Old before: so many of each aggregate.
func (f *fixture) past(aggregates, each int) {
	f.t.Helper()
	for page := range slices.Chunk(ids(aggregates), 500) {
		f.rounds(0, 1, page...)
	}
	f.once()
	numbers := "WITH RECURSIVE n AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM n WHERE n < " + fmt.Sprint(each-1) + ") "
	concat := func(parts ...string) string {
		if f.db.Dialect().Name().String() == "sqlite" {
			return strings.Join(parts, " || ")
		}
		return "CONCAT(" + strings.Join(parts, ", ") + ")"
	}
	payload := "REPLACE(e.event_payload, '\"seq\":0', " + concat("'\"seq\":'", "n.n") + ")"
	if f.db.Dialect().Name().String() == "pg" {
		payload = "CAST(" + strings.Replace(payload, "e.event_payload", "CAST(e.event_payload AS TEXT)", 1) + " AS JSON)"
	}
	insert := "INSERT INTO bc_outbox_event " +
		"(aggregate_type, aggregate_id, event_type, event_id, event_payload, event_metadata, status, sent_at) "
	rows := "SELECT e.aggregate_type, e.aggregate_id, e.event_type, " + concat("e.event_id", "'-'", "n.n") + ", " +
		payload + ", e.event_metadata, 'SENT', e.sent_at " +
		"FROM bc_outbox_event AS e JOIN n ON 1 = 1 WHERE e.aggregate_id LIKE 'order-%' ORDER BY n.n, e.id"
	if f.db.Dialect().Name().String() == "mysql" {
		f.exec(insert + numbers + rows)
	} else {
		f.exec(numbers + insert + rows)
	}
	f.exec("INSERT INTO bc_event_consume_log (consumer_name, event_id, event_type, status, outbox_id, aggregate_type, aggregate_id) " +
		"SELECT 'Old', e.event_id, e.event_type, 'SUCCESS', e.id, e.aggregate_type, e.aggregate_id FROM bc_outbox_event AS e " +
		"WHERE NOT EXISTS (SELECT 1 FROM bc_event_consume_log AS l WHERE l.event_id = e.event_id AND l.consumer_name = 'Old')")
}

// saveLive saves an event of a new aggregate every 50 ms, and the next one of an old aggregate.
func (f *fixture) saveLive(ctx context.Context) {
	next := f.count("SELECT COUNT(*) FROM bc_outbox_event WHERE aggregate_id = 'order-0'")
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-time.After(50 * time.Millisecond):
		}
		f.save(orderPaid{OrderID: fmt.Sprintf("live-%d", i)}, orderPaid{OrderID: fmt.Sprintf("order-%d", i%1000), Seq: next + i/1000})
	}
}

// liveDelays are the delays of live events, by consumer.
type liveDelays struct {
	mu   sync.Mutex
	took map[string][]time.Duration
}

func (d *liveDelays) note(consumer string, took time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.took[consumer] = append(d.took[consumer], took)
}

// of are the median and the 99th percentile, as cells of a table.
func (d *liveDelays) of(consumer string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	took := d.took[consumer]
	slices.Sort(took)
	if len(took) == 0 {
		return "– | –"
	}
	return fmt.Sprintf("%d ms | %d ms", took[len(took)/2].Milliseconds(), took[(len(took)-1)*99/100].Milliseconds())
}
