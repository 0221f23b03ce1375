package enroll_test

import (
	"bytes"
	"context"
	"log/slog"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/engine/enroll"
	"github.com/bluecone-go/bluecone/internal/engine/health"
	"github.com/bluecone-go/bluecone/internal/engine/registry"
	"github.com/bluecone-go/bluecone/internal/faultdb"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/prepared"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/migrations"
)

// limit is how long the tests let an enrollment wait for a silent database.
const limit = time.Minute

// consumer is one that takes these event types.
func consumer(name string, cfg handler.Config, types ...string) *handler.Consumer {
	c := handler.NewConsumer(handler.NewRegistrations(), name, name, cfg)
	for _, typ := range types {
		c.Add(&handler.Handler{EventType: typ, Version: 1, Type: reflect.TypeFor[string]()})
	}
	return c
}

// instance is an enrollment, and what it works with.
type instance struct {
	*enroll.Enrollment
	db     *bun.DB
	tables *enroll.Tables
	roster *registry.Roster
	log    *log
}

// newInstance has written nothing yet.
func newInstance(t *testing.T, db *bun.DB, consumers ...*handler.Consumer) instance {
	t.Helper()
	d, err := dialect.Of(db)
	require.NoError(t, err)
	i := instance{db: db, tables: enroll.NewTables(db, d, dialect.NewQuoting(d), limit), log: &log{}}
	logger := slog.New(slog.NewTextHandler(i.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	known := registry.New(store.NewRegistry(d, prepared.New(db)), enroll.TypesOf(consumers))
	i.roster = registry.NewRoster(db, known, registry.NewRottenRows(logger))
	i.Enrollment = enroll.New(enroll.Config{
		DB: db, Consumers: consumers, Tables: i.tables, Registry: known, Roster: i.roster, Outage: health.NewOutage(logger), Logger: logger,
		Limit: limit,
	})
	return i
}

// enroll enrolls the consumers.
func (i instance) enroll(ctx context.Context) error { return i.Enroll(ctx, health.NewSilence(limit)) }

// log is what a logger has written.
type log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// file is an SQLite database with the tables of this release.
func file(t *testing.T) (dsn string) {
	t.Helper()
	dsn = testdb.DSN(t, "sqlite")
	require.NoError(t, migrations.Up(t.Context(), testdb.OpenDSN(t, dsn)))
	return dsn
}

// faults are the errors of a database, by the number of the statement; the first is 1.
type faults struct {
	mu   sync.Mutex
	sent int
	of   func(n int) error
}

// connect opens a database with these faults. It can be called in a bubble of fake time.
func (f *faults) connect(t *testing.T, dsn string) *bun.DB {
	t.Helper()
	db, err := testdb.ConnectHooked(dsn, faultdb.Hook{Before: func(context.Context, faultdb.Step) error {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.sent++
		if f.of == nil {
			return nil
		}
		return f.of(f.sent)
	}})
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// answer makes every statement from now on fail with err, or none if it is nil.
func (f *faults) answer(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.of = func(int) error { return err }
}

// seen is how many statements were sent.
func (f *faults) seen() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sent
}
