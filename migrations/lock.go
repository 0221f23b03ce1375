package migrations

import (
	"context"
	"crypto/md5" //nolint:gosec // see lockName
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

const (
	lockNumber = 0x626c7565 // PostgreSQL wants a number; its locks are one database's
	lockLimit  = 2 * time.Minute
	lockPause  = 50 * time.Millisecond
)

// locked runs fn while this connection holds the migration lock. The lock belongs to the
// connection, so it dies with the process.
func locked(ctx context.Context, conn bun.Conn, d dialect.Dialect, fn func() error) error {
	switch d.Name {
	case "mysql":
		return underGetLock(ctx, conn, fn)
	case "postgres":
		return inTransaction(ctx, conn, "BEGIN ISOLATION LEVEL READ COMMITTED", fmt.Sprintf("SELECT pg_advisory_xact_lock(%d)", lockNumber), fn)
	default:
		return inTransaction(ctx, conn, "BEGIN IMMEDIATE", "", fn)
	}
}

func underGetLock(ctx context.Context, conn bun.Conn, fn func() error) error {
	name, err := lockName(ctx, conn)
	if err != nil {
		return err
	}
	if err := getLock(ctx, conn, name); err != nil {
		return err
	}
	err = fn()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if _, e := conn.ExecContext(ctx, "DO RELEASE_LOCK(?)", name); e != nil {
		discard(conn)
		err = errors.Join(err, fmt.Errorf("migrations: release the lock: %w", e))
	}
	return err
}

// lockName names the lock of the connection's database, because MySQL's locks are the whole server's. Older releases ask the
// server for the MD5, which MySQL 9.6 and later cannot tell. The name must stay the same, so that both wait for each other.
func lockName(ctx context.Context, conn bun.Conn) (string, error) {
	var database string
	if err := conn.QueryRowContext(ctx, "SELECT COALESCE(DATABASE(), '')").Scan(&database); err != nil {
		return "", fmt.Errorf("migrations: ask for the database's name: %w", err)
	}
	return fmt.Sprintf("bluecone.migrate.%x", md5.Sum([]byte(database))), nil //nolint:gosec // it shortens a name, it protects nothing
}

// getLock asks again and again for a second, so that no read timeout of the driver cuts the wait short.
func getLock(ctx context.Context, conn bun.Conn, name string) error {
	for deadline := time.Now().Add(lockLimit); ; {
		var got int
		if err := conn.QueryRowContext(ctx, "SELECT COALESCE(GET_LOCK(?, 1), 0)", name).Scan(&got); err != nil {
			return fmt.Errorf("migrations: take the lock: %w", err)
		}
		if got == 1 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("migrations: another process has been migrating for %v: see who holds GET_LOCK('%s')", lockLimit, name)
		}
	}
}

// discard closes the connection instead of giving it back to the pool with a lock or a
// transaction on it.
func discard(conn bun.Conn) {
	_ = conn.Raw(func(any) error { return driver.ErrBadConn }) // the error is the way to say it
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
		discard(conn)
		err = errors.Join(err, fmt.Errorf("migrations: %s: %w", end, e))
	}
	return err
}

// beginRetrying waits for another writer of a SQLite file that has no busy timeout set.
func beginRetrying(ctx context.Context, conn bun.Conn, begin string) error {
	return patiently(ctx, func() error {
		_, err := conn.ExecContext(ctx, begin)
		return err
	})
}

// connect waits for another process that is switching the same new SQLite file to WAL: for that
// no busy timeout helps.
func connect(ctx context.Context, db *bun.DB) (conn bun.Conn, err error) {
	err = patiently(ctx, func() error {
		conn, err = db.Conn(ctx)
		return err
	})
	if err != nil {
		return conn, fmt.Errorf("migrations: connect: %w", err)
	}
	return conn, nil
}

// patiently repeats try while the database is locked by somebody else.
func patiently(ctx context.Context, try func() error) error {
	for deadline := time.Now().Add(lockLimit); ; {
		err := try()
		if err == nil || dialect.Classify(err) != dialect.TxRetry || time.Now().After(deadline) {
			return err
		}
		select {
		case <-time.After(lockPause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
