package upgrade_test

import (
	"context"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dbserver"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/internal/testplan"
	"github.com/bluecone-go/bluecone/migrations"
)

// How long each migration takes with so many rows in the tables of events and of deliveries, and how long it keeps writers
// waiting, on durable servers: docs/schema.md.
//
//	BLUECONE_TEST_MEASURE=1 go test -count=1 -v -timeout 1h -run MeasureMigrations ./internal/upgrade | grep -o '|.*'
func TestMeasureMigrations(t *testing.T) { //nolint:paralleltest // it measures
	rows := testdb.MeasuresWith(t, 1_000_000)
	t.Log("| database | migration | takes | longest wait of a writer: event | delivery |")
	t.Log("|---|---|---|---|---|")
	for _, name := range testdb.Dialects() { //nolint:paralleltest // it measures
		t.Run(name, func(t *testing.T) {
			open := durable(t, name)
			files := old(t, open("files"), rows, "")
			w := writeTo(t, files)
			testdb.EachMigration(t, files, func(file string, apply func()) {
				if file >= "0006" {
					w.during(name, file, apply)
				}
			})
			w.stop()
			w = writeTo(t, old(t, open("whole"), rows, ""))
			w.during(name, "all of them by `migrations.Up`", func() { require.NoError(t, migrations.Up(t.Context(), w.db)) })
			w.stop()
			w = writeTo(t, old(t, open("renamed"), rows, `["A"]`))
			w.during(name, "all of them by `migrations.Up`, and the log is a renamed consumer's", func() {
				require.NoError(t, migrations.Up(t.Context(), w.db))
			})
			w.stop()
		})
	}
}

// durable starts a durable server and returns what opens a new database on it.
func durable(t *testing.T, name string) func(database string) *bun.DB {
	t.Helper()
	if name == "sqlite" {
		dir := t.TempDir()
		return func(database string) *bun.DB { return testdb.OpenDSN(t, "sqlite://"+filepath.Join(dir, database)) }
	}
	srv, err := dbserver.Start(name, dbserver.Large)
	if err != nil {
		testdb.Unavailable(t, name, err)
	}
	t.Cleanup(srv.Stop)
	admin := testdb.OpenDSN(t, srv.URL.String())
	return func(database string) *bun.DB {
		_, err := admin.ExecContext(t.Context(), "CREATE DATABASE "+database)
		require.NoError(t, err)
		u := *srv.URL
		u.Path = "/" + database
		return testdb.OpenDSN(t, u.String())
	}
}

// old makes the tables of the release before, with so many events and deliveries to A, which another consumer may have as
// its former name.
func old(t *testing.T, db *bun.DB, rows int, aliases string) *bun.DB {
	t.Helper()
	exec := func(query string, args ...any) {
		t.Helper()
		_, err := db.ExecContext(t.Context(), query, args...)
		require.NoError(t, err, query)
	}
	lite := testdb.Server(t, db) == "sqlite" // there a file cannot be applied twice
	if lite {
		exec("CREATE TABLE bc_schema_version (version INTEGER NOT NULL PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL, applied_at " +
			"TEXT NOT NULL)")
	}
	testdb.EachMigration(t, db, func(file string, apply func()) {
		if file >= "0006" {
			return
		}
		apply()
		if lite {
			sum := fnv.New64a()
			text, err := os.ReadFile(filepath.Join("..", "..", "migrations", "sqlite", file))
			require.NoError(t, err)
			_, _ = sum.Write(text) // never fails
			exec("INSERT INTO bc_schema_version VALUES (?, ?, ?, '2026-01-01 00:00:00.000000')", file[:4], file[5:len(file)-4],
				strconv.FormatUint(sum.Sum64(), 16))
		}
	})
	testplan.Fill(t, db, rows, "1", "A")
	if aliases != "" {
		exec("INSERT INTO bc_consumer (name, event_types, aliases) VALUES ('B', '[]', ?)", aliases)
	}
	return db
}

// writers save events and note deliveries, as other instances do meanwhile.
type writers struct {
	t    *testing.T
	db   *bun.DB
	end  context.CancelFunc
	all  sync.WaitGroup
	mu   sync.Mutex
	took map[string][]span
}

type span struct{ from, to time.Time }

func writeTo(t *testing.T, db *bun.DB) *writers {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w := &writers{t: t, db: db, end: cancel, took: make(map[string][]span)}
	t.Cleanup(w.stop)
	for kind, query := range map[string]string{
		"event": "INSERT INTO bc_outbox_event (aggregate_type, aggregate_id, event_type, event_id, event_payload, status) " +
			"VALUES ('ORDER', '2', 'order.paid', ?, '{}', 'SENT')",
		"delivery": "INSERT INTO bc_event_consume_log (consumer_name, event_id, event_type, attempts) VALUES ('C', ?, 'order.paid', 1)",
	} {
		w.all.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				began := time.Now()
				if _, err := db.ExecContext(context.WithoutCancel(ctx), query, fmt.Sprintf("w-%d", n)); err != nil {
					t.Log(kind, err) // SQLite gives up after 10 s
				}
				w.mu.Lock()
				w.took[kind] = append(w.took[kind], span{began, time.Now()})
				w.mu.Unlock()
				time.Sleep(2 * time.Millisecond) //nolint:forbidigo // a load of so many a second
			}
		})
	}
	return w
}

func (w *writers) stop() {
	w.end()
	w.all.Wait()
}

// during tells how long fn took, and how long a write that overlaps it took at most.
func (w *writers) during(database, what string, fn func()) {
	time.Sleep(200 * time.Millisecond) //nolint:forbidigo // what came before is over; it measures
	began := time.Now()
	fn()
	ended := time.Now()
	time.Sleep(200 * time.Millisecond) //nolint:forbidigo // what waited has been written; it measures
	w.mu.Lock()
	defer w.mu.Unlock()
	longest := make(map[string]time.Duration)
	for kind, spans := range w.took {
		for _, s := range spans {
			if s.to.After(began) && s.from.Before(ended) {
				longest[kind] = max(longest[kind], s.to.Sub(s.from))
			}
		}
	}
	w.t.Logf("| %s | %s | %v | %v | %v |", database, what, ended.Sub(began).Round(time.Millisecond),
		longest["event"].Round(time.Millisecond), longest["delivery"].Round(time.Millisecond))
}
