package enroll_test

import (
	"context"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/engine/enroll"
	"github.com/bluecone-go/bluecone/internal/engine/health"
	"github.com/bluecone-go/bluecone/internal/engine/registry"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/prepared"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/testdb"
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
	log    *testdb.Log
}

// newInstance has written nothing yet.
func newInstance(t *testing.T, db *bun.DB, consumers ...*handler.Consumer) instance {
	t.Helper()
	d, err := dialect.Of(db)
	require.NoError(t, err)
	i := instance{db: db, tables: enroll.NewTables(db, d, dialect.NewQuoting(d), limit), log: &testdb.Log{}}
	logger := i.log.Logger()
	known := registry.New(store.NewRegistry(d, prepared.New(db)), enroll.TypesOf(consumers))
	i.roster = registry.NewRoster(db, known, registry.NewMalformedRows(logger))
	i.Enrollment = enroll.New(enroll.Config{
		DB: db, Consumers: consumers, Tables: i.tables, Registry: known, Roster: i.roster, Outage: health.NewOutage(logger), Logger: logger,
		Limit: limit,
	})
	return i
}

// enroll enrolls the consumers.
func (i instance) enroll(ctx context.Context) error { return i.Enroll(ctx, health.NewSilence(limit)) }
