package testdb

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/migrations"
)

// template is a migrated database of a server, which those of the tests are copies of: the migrations themselves take a server a third
// of a second, and there are thousands of tests.
type template struct {
	once     sync.Once
	database string
	err      error

	// MySQL copies tables only, not a whole database.
	tables []string
	filled []string // those of them that have rows from the start
}

const templateTimeout = 5 * time.Minute

// of makes the database, once.
func (m *template) of(s *instance, dialect string) error {
	m.once.Do(func() {
		m.database = "bc_template_" + random()
		m.err = m.create(s, dialect)
	})
	return m.err
}

func (m *template) create(s *instance, dialect string) error {
	ctx, cancel := context.WithTimeout(context.Background(), templateTimeout)
	defer cancel()
	admin, err := Connect(s.admin.String())
	if err != nil {
		return err
	}
	defer admin.Close()
	if _, err := admin.ExecContext(ctx, "CREATE DATABASE "+m.database); err != nil {
		return err
	}
	db, err := Connect(s.url(m.database))
	if err != nil {
		return err
	}
	defer db.Close() // PostgreSQL copies nothing that somebody is connected to
	if err := migrations.Up(ctx, db); err != nil || dialect == "postgres" {
		return err
	}
	const tables = "SELECT table_name FROM information_schema.tables WHERE table_schema = ?"
	if err := db.NewRaw(tables, m.database).Scan(ctx, &m.tables); err != nil {
		return err
	}
	for _, table := range m.tables {
		filled, err := db.NewSelect().Table(table).Exists(ctx)
		if err != nil {
			return err
		}
		if filled {
			m.filled = append(m.filled, table)
		}
	}
	return nil
}

// remove drops the database of a server that is not ours.
func (m *template) remove(s *instance) {
	if m.database == "" || s.private != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), templateTimeout)
	defer cancel()
	if admin, err := Connect(s.admin.String()); err == nil {
		_, _ = admin.ExecContext(ctx, "DROP DATABASE IF EXISTS "+m.database) // nothing is lost if it stays
		_ = admin.Close()
	}
}

// copied returns a pool on a fresh database with the tables of bluecone.
func copied(t testing.TB, dialect string) *bun.DB {
	t.Helper()
	srv := server(t, dialect)
	if err := srv.template.of(srv, dialect); err != nil {
		t.Fatalf("testdb: %v", err)
	}
	if dialect == "postgres" {
		return OpenDSN(t, create(t, dialect, srv, " TEMPLATE "+srv.template.database))
	}
	db := OpenDSN(t, create(t, dialect, srv, ""))
	srv.template.fill(t, db)
	return db
}

// fill makes the tables of bluecone in a fresh database of MySQL's kind, with the rows that they have from the start.
func (m *template) fill(t testing.TB, db *bun.DB) {
	t.Helper()
	for _, table := range m.tables {
		mustExec(t, db, "CREATE TABLE "+table+" LIKE "+m.database+"."+table)
	}
	for _, table := range m.filled {
		mustExec(t, db, "INSERT INTO "+table+" SELECT * FROM "+m.database+"."+table)
	}
}

// migratedFile is the content of a migrated file of SQLite, which the files of the tests are copies of.
var migratedFile = sync.OnceValues(func() ([]byte, error) { //nolint:gochecknoglobals // one of the process
	dir, err := os.MkdirTemp("", "bluecone-template-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "test.db")
	ctx, cancel := context.WithTimeout(context.Background(), templateTimeout)
	defer cancel()
	db, err := Connect("sqlite://" + path)
	if err != nil {
		return nil, err
	}
	err = migrations.Up(ctx, db)
	if err := errors.Join(err, db.Close()); err != nil { // what is in the log goes to the file when the last connection ends
		return nil, err
	}
	return os.ReadFile(path)
})

// copyFile makes the file of a DSN a copy of the migrated one.
func copyFile(t testing.TB, dsn string) {
	t.Helper()
	content, err := migratedFile()
	if err == nil {
		err = os.WriteFile(strings.TrimPrefix(dsn, "sqlite://"), content, 0o600) //nolint:gosec // the file that DSN has just named
	}
	if err != nil {
		t.Fatalf("testdb: %v", err)
	}
}
