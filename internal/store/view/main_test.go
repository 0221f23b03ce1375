package view_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/store/view"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// fixture is one database, and a reader of it that reads 20 characters of a name and 30 of a document.
type fixture struct {
	view.Reader

	t  *testing.T
	db *bun.DB
}

func each(t *testing.T, fn func(f fixture)) {
	t.Helper()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		d, err := dialect.Of(db)
		require.NoError(t, err)
		fn(fixture{view.Reader{D: d, Names: 20, Documents: 30, Rows: view.On(db)}, t, db})
	})
}

func (f fixture) exec(query string, args ...any) {
	f.t.Helper()
	_, err := f.db.ExecContext(f.t.Context(), query, args...)
	require.NoError(f.t, err, query)
}

// event adds an event of the aggregate A/1 that was saved, and is due, so long ago.
func (f fixture) event(id, status string, ago time.Duration) (outboxID int64) {
	f.t.Helper()
	f.exec("INSERT INTO bc_outbox_event (aggregate_type, aggregate_id, event_type, event_id, event_payload, status, created_at, "+
		"next_retry_at) VALUES ('A', '1', 'a.b', ?, '{\"n\":1}', ?, "+f.D.After+", "+f.D.After+")",
		id, status, -dialect.Micro(ago), -dialect.Micro(ago))
	require.NoError(f.t, f.db.QueryRowContext(f.t.Context(), "SELECT id FROM bc_outbox_event WHERE event_id = ?", id).Scan(&outboxID))
	return outboxID
}

// delivery adds a delivery that was made, and is due, so long ago.
func (f fixture) delivery(id, consumer, status string, ago time.Duration) {
	f.t.Helper()
	f.exec("INSERT INTO bc_event_consume_log (consumer_name, event_id, event_type, status, error_message, outbox_id, aggregate_type, "+
		"aggregate_id, created_at, next_retry_at) VALUES (?, ?, 'a.b', ?, 'it broke', (SELECT id FROM bc_outbox_event WHERE event_id = ?), "+
		"'A', '1', "+f.D.After+", "+f.D.After+")", consumer, id, status, id, -dialect.Micro(ago), -dialect.Micro(ago))
}

// attempt adds an attempt that has failed.
func (f fixture) attempt(id, consumer string, n int, outcome string) {
	f.t.Helper()
	f.exec("INSERT INTO bc_delivery_attempt (consumer_name, event_id, attempt, outcome, error_message, instance, duration_us) "+
		"VALUES (?, ?, ?, ?, 'it broke', 'me', 1500)", consumer, id, n, outcome)
}

// consumer registers a consumer of a.b that was seen so long ago.
func (f fixture) consumer(name string, ago time.Duration) {
	f.t.Helper()
	f.exec("INSERT INTO bc_consumer (name, display_name, event_types, aliases, replayable, registered_at, seen_at) "+
		"VALUES (?, ?, '[\"a.b\"]', '[]', 1, "+f.D.After+", "+f.D.After+")", name, "the "+name,
		-dialect.Micro(ago+time.Hour), -dialect.Micro(ago))
	f.exec("INSERT INTO bc_consumer_type (consumer_name, event_type, seen_at) VALUES (?, 'a.b', "+f.D.After+")", name, -dialect.Micro(ago))
}

// ago requires that a time lies about so long before now.
func (f fixture) ago(want time.Duration, at time.Time) {
	f.t.Helper()
	require.InDelta(f.t, want, time.Since(at), float64(30*time.Minute), at)
}

// must is the value of a call that must not fail.
func must[T any](t *testing.T) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		require.NoError(t, err)
		return v
	}
}

func long(n int) string { return fmt.Sprintf("%0*d", n, 7) }
