package store

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

// Barriers are the rows of bc_barrier, a table in the database of a producer that reserves events at a ledger: CONFIRMED stands in the
// transaction that the reservation is for, CANCELED says that this transaction may not commit any more. The first of them stays.
type Barriers struct{ d dialect.Dialect }

// NewBarriers returns the statements in the words of a database.
func NewBarriers(d dialect.Dialect) Barriers { return Barriers{d} }

// Barrier is one of them.
type Barrier struct{ Token, State string }

var barrierTable = map[string]string{ //nolint:gochecknoglobals // a constant table
	"mysql": "CREATE TABLE IF NOT EXISTS bc_barrier (token VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY, " +
		"state VARCHAR(16) NOT NULL, created_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)), KEY idx_barrier_created (created_at)) " +
		"ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin",
	"postgres": "CREATE TABLE IF NOT EXISTS bc_barrier (token varchar(64) NOT NULL PRIMARY KEY, state varchar(16) NOT NULL, " +
		"created_at timestamptz NOT NULL DEFAULT statement_timestamp())",
	"sqlite": "CREATE TABLE IF NOT EXISTS bc_barrier (token TEXT NOT NULL PRIMARY KEY, state TEXT NOT NULL, " +
		"created_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')) WITHOUT ROWID",
}

// Create makes the table, unless it is there.
func (b Barriers) Create(ctx context.Context, db *bun.DB) error {
	if _, err := b.Old(ctx, db, 0, 1); err == nil {
		return nil // it is there; the user may not be allowed to make tables
	}
	_, err := db.DB.ExecContext(ctx, barrierTable[b.d.Name])
	if dialect.Classify(err) == dialect.Duplicate { // PostgreSQL, of two that make it at once
		_, err = db.DB.ExecContext(ctx, barrierTable[b.d.Name])
	}
	if err == nil && b.d.Name != "mysql" {
		_, err = db.DB.ExecContext(ctx, "CREATE INDEX IF NOT EXISTS bc_barrier_idx_created ON bc_barrier (created_at)")
	}
	if err != nil {
		return fmt.Errorf("make the table bc_barrier: %w", err)
	}
	return nil
}

// Executor is any open transaction.
type Executor interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// Commits says that a transaction of any library is the one of a token, which has letters and digits only: so the statement has no
// placeholders, which each library writes in its own way. It reports false if somebody has said something of this token before.
func Commits(ctx context.Context, tx Executor, token string) (first bool, err error) {
	_, err = tx.ExecContext(ctx, "INSERT INTO bc_barrier (token, state) VALUES ('"+token+"', 'CONFIRMED')")
	if dialect.Classify(err) == dialect.Duplicate {
		return false, nil
	}
	return err == nil, err
}

// Decide says CANCELED of a token, unless something is said of it, and returns what stands then. It waits for the transaction that is
// about to say something. It inserts first: a question alone would miss what commits after it.
func (b Barriers) Decide(ctx context.Context, tx bun.Tx, token string) (state string, err error) {
	if _, err := tx.ExecContext(ctx, "INSERT INTO bc_barrier (token, state) VALUES (?, 'CANCELED')"+b.d.Ignore("token"), token); err != nil {
		return "", fmt.Errorf("write a barrier: %w", err)
	}
	err = tx.QueryRowContext(ctx, "SELECT state FROM bc_barrier WHERE token = ?", token).Scan(&state)
	if err != nil {
		return "", fmt.Errorf("read a barrier: %w", err)
	}
	return state, nil
}

// Old reads the oldest barriers that are older than an age, along the index of created_at.
func (b Barriers) Old(ctx context.Context, idb bun.IDB, age time.Duration, most int) (old []Barrier, err error) {
	err = EachRow(ctx, idb, func(rows *sql.Rows) error {
		var one Barrier
		err := rows.Scan(&one.Token, &one.State)
		old = append(old, one)
		return err
	}, "SELECT token, state FROM bc_barrier WHERE created_at < "+b.d.After+" ORDER BY created_at LIMIT ?", -dialect.Micro(age), most)
	if err != nil {
		return nil, fmt.Errorf("read old barriers: %w", err)
	}
	return old, nil
}

// Remove deletes a barrier, by the primary key.
func (b Barriers) Remove(ctx context.Context, idb bun.IDB, token string) error {
	if _, err := idb.ExecContext(ctx, "DELETE FROM bc_barrier WHERE token = ?", token); err != nil {
		return fmt.Errorf("remove a barrier: %w", err)
	}
	return nil
}
