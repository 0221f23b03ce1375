package testdb

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/faultdb"
)

// File is the URL of a fresh file of SQLite with the tables of bluecone.
func File(t testing.TB) (dsn string) {
	t.Helper()
	dsn = DSN(t, "sqlite")
	copyFile(t, dsn)
	return dsn
}

// Faults are the errors that a database answers statements with, and the begin of a transaction. It commits and rolls back whatever
// happens: otherwise the connection would go back to the pool with an open transaction. The zero value has no faults. It is safe for
// concurrent use.
type Faults struct {
	mu   sync.Mutex
	sent int
	of   func(n int) error
}

// Connect returns a pool on a database with these faults. Tests in fake time call it there, with the URL of a [File].
func (f *Faults) Connect(t testing.TB, dsn string) *bun.DB {
	t.Helper()
	db, err := ConnectHooked(dsn, faultdb.Hook{Before: func(_ context.Context, s faultdb.Step) error { return f.answer(s) }})
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func (f *Faults) answer(s faultdb.Step) error {
	if s.Op == faultdb.Commit || s.Op == faultdb.Rollback {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sent++
	if f.of == nil {
		return nil
	}
	return f.of(f.sent)
}

// Fail makes every step from now on fail with err, or none if it is nil.
func (f *Faults) Fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.of = func(int) error { return err }
}

// FailOnce makes the n-th step from now on fail with err, and no other. The next one is the first.
func (f *Faults) FailOnce(n int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sent, f.of = 0, func(sent int) error {
		if sent == n {
			return err
		}
		return nil
	}
}

// Sent is how many steps there were, since the last [Faults.FailOnce] if there was one.
func (f *Faults) Sent() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sent
}
