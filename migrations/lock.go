package migrations

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

const (
	lockName    = "bluecone.migrate"
	lockNumber  = 0x626c7565 // the same for PostgreSQL, which wants a number
	lockSeconds = 120
)

// locked runs fn while this connection holds the migration lock. The lock belongs to the
// connection, so it dies with the process.
func locked(ctx context.Context, conn bun.Conn, d dialect.Dialect, fn func() error) error {
	switch d.Name {
	case "mysql":
		return underGetLock(ctx, conn, fn)
	case "postgres":
		return inTransaction(ctx, conn, "BEGIN", fmt.Sprintf("SELECT pg_advisory_xact_lock(%d)", lockNumber), fn)
	default:
		return inTransaction(ctx, conn, "BEGIN IMMEDIATE", "", fn)
	}
}

func underGetLock(ctx context.Context, conn bun.Conn, fn func() error) error {
	var got int
	if err := conn.QueryRowContext(ctx, "SELECT COALESCE(GET_LOCK(?, ?), 0)", lockName, lockSeconds).Scan(&got); err != nil {
		return fmt.Errorf("migrations: take the lock: %w", err)
	}
	if got != 1 {
		return fmt.Errorf("migrations: another process has been migrating for %d s: see who holds GET_LOCK(%q)", lockSeconds, lockName)
	}
	err := fn()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if _, e := conn.ExecContext(ctx, "DO RELEASE_LOCK(?)", lockName); e != nil {
		err = errors.Join(err, fmt.Errorf("migrations: release the lock: %w", e))
	}
	return err
}

// inTransaction runs fn in one transaction of a database whose DDL is transactional.
func inTransaction(ctx context.Context, conn bun.Conn, begin, lock string, fn func() error) error {
	if err := beginRetrying(ctx, conn, begin); err != nil {
		return fmt.Errorf("migrations: %s: %w", begin, err)
	}
	err := func() error {
		if lock != "" {
			if _, err := conn.ExecContext(ctx, lock); err != nil {
				return fmt.Errorf("migrations: take the lock: %w", err)
			}
		}
		return fn()
	}()
	end := "COMMIT"
	if err != nil {
		end = "ROLLBACK"
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	if _, e := conn.ExecContext(ctx, end); e != nil {
		err = errors.Join(err, fmt.Errorf("migrations: %s: %w", end, e))
	}
	return err
}

// beginRetrying waits for another writer of a SQLite file that has no busy timeout set.
func beginRetrying(ctx context.Context, conn bun.Conn, begin string) error {
	deadline := time.Now().Add(lockSeconds * time.Second)
	for {
		_, err := conn.ExecContext(ctx, begin)
		if err == nil || dialect.Classify(err) != dialect.TxRetry || time.Now().After(deadline) {
			return err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
