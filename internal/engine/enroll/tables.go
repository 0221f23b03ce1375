package enroll

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/store"
)

// Tables looks whether the database is one that this release can work on. It is safe for concurrent use.
type Tables struct {
	db      *bun.DB
	dialect dialect.Dialect
	quoting *dialect.Quoting
	limit   time.Duration

	areSeen atomic.Bool // they were seen to be those of this release
}

// NewTables returns one that has not looked yet. It waits for a silent database no longer than the limit.
func NewTables(db *bun.DB, d dialect.Dialect, quoting *dialect.Quoting, limit time.Duration) *Tables {
	return &Tables{db: db, dialect: d, quoting: quoting, limit: limit}
}

// Check looks whether the database reads texts as they are written, and has the tables of this release. Once both are so, it does
// not look again.
func (t *Tables) Check(ctx context.Context) error {
	if t.areSeen.Load() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, t.limit)
	defer cancel()
	err := t.quoting.Check(ctx, t.db)
	if err == nil {
		err = store.CheckTables(ctx, t.db, t.dialect)
	}
	if err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	t.areSeen.Store(true)
	return nil
}
