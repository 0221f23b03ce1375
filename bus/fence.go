package bus

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

// fence watches the statements of one transaction and ends it for good at the first
// error after which it must not commit.
//
// After a deadlock MariaDB has rolled the transaction back, runs the next statement in
// autocommit and answers COMMIT with success; after a lock wait timeout it commits
// what is left. A handler that swallows such an error would take effect without its
// SUCCESS row. So the transaction is rolled back on the spot: whatever the handler
// tries next answers sql.ErrTxDone.
type fence struct {
	mu  sync.Mutex
	tx  *sql.Tx
	err error
}

// errPoisoned wraps the error that ended a fenced transaction.
var errPoisoned = errors.New("the transaction was rolled back because it could not be trusted any more")

// beginFenced starts a transaction whose every statement passes the fence.
func beginFenced(ctx context.Context, db *bun.DB, opts *sql.TxOptions) (bun.Tx, *fence, error) {
	f := &fence{}
	tx, err := db.WithQueryHook(f).BeginTx(ctx, opts)
	if err != nil {
		return bun.Tx{}, nil, err
	}
	f.tx = tx.Tx
	return tx, f, nil
}

// BeforeQuery does nothing; a poisoned transaction refuses by itself.
func (f *fence) BeforeQuery(ctx context.Context, _ *bun.QueryEvent) context.Context { return ctx }

// AfterQuery poisons the transaction after an error of a class that poisons.
func (f *fence) AfterQuery(_ context.Context, ev *bun.QueryEvent) {
	if ev.Err == nil || f.tx == nil || !dialect.Classify(ev.Err).Poisons() {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.err = fmt.Errorf("%w: %w", errPoisoned, ev.Err)
		_ = f.tx.Rollback() // on a lost connection there is nothing left to roll back
	}
}

// poisoned is the error that ended the transaction, or nil.
func (f *fence) poisoned() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}
