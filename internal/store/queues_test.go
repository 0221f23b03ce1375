package store_test

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/prepared"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/internal/testplan"
)

func newQueues(t *testing.T, db *bun.DB) (store.Queues, dialect.Dialect) {
	t.Helper()
	d, err := dialect.Of(db)
	require.NoError(t, err)
	return store.NewQueues(d, prepared.New(db)), d
}

// wait adds a delivery that has been due for, or is due after, a while.
func wait(t *testing.T, db *bun.DB, d dialect.Dialect, consumer, status string, after time.Duration) {
	t.Helper()
	testdb.Exec(t, db, "INSERT INTO bc_event_consume_log (consumer_name, event_id, event_type, status, created_at, next_retry_at) "+
		"VALUES (?, ?, 'a.b', ?, "+d.After+", "+d.After+")",
		consumer, fmt.Sprint(consumer, status, after), status, dialect.Micro(-2*time.Hour), dialect.Micro(after))
}

func TestWhatWaitsForConsumers(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		q, d := newQueues(t, db)
		for _, name := range []string{"Failed", "Pending", "Processing", "Later", "Done", "Masked", "Nothing"} {
			testdb.Exec(t, db, "INSERT INTO bc_consumer (name, event_types, aliases) VALUES (?, '[]', '[]')", name)
		}
		const past, later = -time.Minute, time.Hour
		wait(t, db, d, "Failed", "FAILED", past)
		wait(t, db, d, "Pending", "PENDING", past)
		wait(t, db, d, "Processing", "PROCESSING", past)
		wait(t, db, d, "Later", "PROCESSING", later)
		wait(t, db, d, "Later", "FAILED", later)
		wait(t, db, d, "Later", "PENDING", later)
		for _, status := range []string{"SUCCESS", "SKIPPED", "DEAD"} {
			wait(t, db, d, "Done", status, past)
		}
		wait(t, db, d, "Unregistered", "FAILED", past)
		wait(t, db, d, "Masked", "FAILED", later)
		testdb.Exec(t, db, "UPDATE bc_event_consume_log SET next_retry_at = NULL WHERE consumer_name = 'Masked'") // it sorts first
		wait(t, db, d, "Masked", "FAILED", past)

		due, err := q.DueConsumers(t.Context(), db)
		require.NoError(t, err)
		require.Equal(t, []string{"Failed", "Masked", "Pending", "Processing"}, slices.Sorted(slices.Values(due)))
		leased, err := q.Leased(t.Context(), db)
		require.NoError(t, err)
		require.Equal(t, []string{"Later", "Processing"}, slices.Sorted(slices.Values(leased)))

		putOff, err := q.PutOff(t.Context(), db)
		require.NoError(t, err)
		require.Equal(t, []string{"Later"}, putOff)

		timeless, err := q.Timeless(t.Context(), db)
		require.NoError(t, err)
		require.Equal(t, []string{"Masked"}, timeless)

		backlogs, err := q.Backlogs(t.Context(), db)
		require.NoError(t, err)
		require.Len(t, backlogs, 7, "of registered consumers")
		require.Equal(t, store.Backlog{}, backlogs["Nothing"])
		require.Equal(t, store.Backlog{Dead: 1}, backlogs["Done"])
		require.EqualValues(t, 3, backlogs["Later"].Waiting)
		require.EqualValues(t, 2, backlogs["Masked"].Waiting)
		require.InDelta(t, 2*time.Hour, backlogs["Failed"].Oldest, float64(10*time.Minute))
	})
}

var history = regexp.MustCompile(`type=(ALL|index) .*rows=\d{5,}|Using filesort.*rows=\d{5,}|rows=\d{5,}.*Using filesort|` +
	`Seq Scan on bc_(outbox|event)|detail=SCAN (bc_(outbox|event)|e\b|l\b)|USE TEMP B-TREE`)

// What waits for thousands of consumers is found without reading what they have had, nor what is due later.
func TestQueuesAreFoundByTheirIndex(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		q, d := newQueues(t, db)
		const consumers, later = 2000, 15_000
		text := map[string]string{"mysql": "CONCAT('%s', i)", "postgres": "'%s' || i", "sqlite": "'%s' || i"}[d.Name]
		testplan.Fill(t, db, testplan.Enough(db, 100_000), "1", "C1")
		testdb.Exec(t, db, "INSERT INTO bc_consumer (name, event_types, aliases) SELECT "+fmt.Sprintf(text, "C")+", '[]', '[]' FROM ("+
			testplan.Series(db, consumers)+") AS n")
		testdb.Exec(t, db, "INSERT INTO bc_event_consume_log (consumer_name, event_id, event_type, status, next_retry_at) SELECT 'C1', "+
			fmt.Sprintf(text, "later")+", 'a.b', 'PENDING', "+d.After+
			" FROM ("+testplan.Series(db, later)+") AS n", dialect.Micro(time.Hour))
		sent := testplan.Record(db, "bc_event_consume_log")
		look := func() {
			due, err := q.DueConsumers(t.Context(), db)
			require.NoError(t, err)
			require.Empty(t, due)
			_, err = q.Leased(t.Context(), db)
			require.NoError(t, err)
			_, err = q.Timeless(t.Context(), db)
			require.NoError(t, err)
			_, err = q.PutOff(t.Context(), db)
			require.NoError(t, err)
			backlogs, err := q.Backlogs(t.Context(), db)
			require.NoError(t, err)
			require.EqualValues(t, later, backlogs["C1"].Waiting)
			queues, err := store.Queued(t.Context(), db, d)
			require.NoError(t, err)
			require.Equal(t, []store.Queue{{Consumer: "C1", Status: "PENDING"}}, queues)
			sent.Require(t, db, history, 4)
		}
		look() // before the database knows how much waits
		_, err := db.DB.ExecContext(t.Context(), map[string]string{
			"mysql": "ANALYZE TABLE bc_event_consume_log", "postgres": "ANALYZE", "sqlite": "ANALYZE",
		}[d.Name])
		require.NoError(t, err)
		look()
		if d.Name == "mysql" {
			require.Less(t, rowsRead(t, db, func(conn bun.IDB) error { _, err := q.DueConsumers(t.Context(), conn); return err }), later,
				"it reads the first of each queue")
			require.Less(t, rowsRead(t, db, func(conn bun.IDB) error { _, err := store.Queued(t.Context(), conn, d); return err }), 100,
				"it jumps from queue to queue")
		}
	})
}

// rowsRead tells how many rows or index entries a MySQL server has read for what fn asks.
func rowsRead(t *testing.T, db *bun.DB, fn func(conn bun.IDB) error) (n int) {
	t.Helper()
	conn, err := db.Conn(t.Context())
	require.NoError(t, err)
	defer conn.Close()
	read := func() (sum int) {
		rows, err := conn.QueryContext(context.WithoutCancel(t.Context()), "SHOW SESSION STATUS LIKE 'Handler_read%'")
		require.NoError(t, err)
		defer rows.Close()
		for rows.Next() {
			var name string
			var count int
			require.NoError(t, rows.Scan(&name, &count))
			sum += count
		}
		require.NoError(t, rows.Err())
		return sum
	}
	before := read()
	require.NoError(t, fn(conn))
	return read() - before
}

func TestQueuesThatAreNotEmpty(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		_, d := newQueues(t, db)
		found, err := store.Queued(t.Context(), db, d)
		require.NoError(t, err)
		require.Empty(t, found)
		for _, consumer := range []string{"A", "A@replay", "B", "b", "Ünregistered"} {
			wait(t, db, d, consumer, "SUCCESS", 0)
			wait(t, db, d, consumer, "DEAD", 0)
			wait(t, db, d, consumer, "DEAD", time.Second)
		}
		wait(t, db, d, "B", "PENDING", 0)
		wait(t, db, d, "B", "ODD", 0)
		wait(t, db, d, "Done", "SUCCESS", 0)
		want := []store.Queue{
			{"A", "DEAD"},
			{"A@replay", "DEAD"},
			{"B", "DEAD"},
			{"B", "ODD"},
			{"B", "PENDING"},
			{"b", "DEAD"},
			{"Ünregistered", "DEAD"},
		}
		found, err = store.Queued(t.Context(), db, d)
		require.NoError(t, err)
		require.Equal(t, want, found)
		require.Equal(t, []store.Queue{{"B", "ODD"}, {"B", "PENDING"}}, store.In(found, "PENDING", "ODD"))

		asked, counts := 0, make(map[store.Queue]int)
		for query, args := range store.Union("SELECT consumer_name, status, COUNT(*) FROM (SELECT consumer_name, status FROM "+store.OfQueue(d)+
			" LIMIT 10) AS t GROUP BY consumer_name, status", want, 3,
			func(q store.Queue) []any { return []any{q.Consumer, q.Status} }) {
			asked++
			rows, err := db.QueryContext(t.Context(), query, args...)
			require.NoError(t, err)
			for rows.Next() {
				var q store.Queue
				var n int
				require.NoError(t, rows.Scan(&q.Consumer, &q.Status, &n))
				counts[q] = n
			}
			require.NoError(t, rows.Err())
			require.NoError(t, rows.Close())
		}
		require.Equal(t, 3, asked)
		require.Len(t, counts, len(want))
		require.Equal(t, 2, counts[store.Queue{Consumer: "b", Status: "DEAD"}])
	})
}
