package outbox_test

import (
	"context"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/doctor"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/migrations"
	"github.com/bluecone-go/bluecone/outbox"
)

// looseQuoting is a pool on a fresh database whose sessions do not read texts as they are written.
func looseQuoting(t *testing.T, name string) *bun.DB {
	t.Helper()
	dsn := testdb.DSN(t, name)
	db := testdb.OpenDSN(t, dsn)
	require.NoError(t, migrations.Up(t.Context(), db))
	if testdb.Dialect(name) == "mysql" {
		db.SetMaxOpenConns(1) // the one that is changed
		_, err := db.ExecContext(t.Context(), "SET SESSION sql_mode = CONCAT(@@SESSION.sql_mode, ',NO_BACKSLASH_ESCAPES')")
		require.NoError(t, err)
		return db
	}
	u, err := url.Parse(dsn)
	require.NoError(t, err)
	_, err = db.ExecContext(t.Context(), "ALTER DATABASE "+strings.TrimPrefix(u.Path, "/")+" SET standard_conforming_strings = off")
	require.NoError(t, err)
	return testdb.OpenDSN(t, dsn)
}

// A database whose sessions would run a part of somebody's text as SQL is used by nobody.
func TestADatabaseThatDoesNotKeepTextsApartIsRefused(t *testing.T) {
	t.Parallel()
	for _, name := range testdb.Servers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := looseQuoting(t, name)
			ob, err := outbox.New(db, outbox.Config{})
			require.NoError(t, err)
			err = db.RunInTx(t.Context(), nil, func(ctx context.Context, tx bun.Tx) error { return ob.Save(ctx, tx, handPaid{}) })
			require.ErrorContains(t, err, "must not be used with these settings")
			p, err := outbox.NewPublisher(ob, bus.New(db, bus.Config{}), outbox.PublisherConfig{})
			require.NoError(t, err)
			require.ErrorContains(t, p.Run(t.Context()), "must not be used with these settings")
			_, err = p.RunOnce(t.Context())
			require.ErrorContains(t, err, "must not be used with these settings")
			report, err := doctor.Examine(t.Context(), db, doctor.Config{})
			require.NoError(t, err)
			for _, f := range report {
				if f.Check == "quoting" {
					require.Equal(t, doctor.Fail, f.Level)
				}
			}
			require.Equal(t, doctor.Fail, report.Worst())
		})
	}
}
