package database

import (
	"database/sql"
	"fmt"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"
)

// Dialect is what the demo's statements spell differently on each database.
type Dialect struct {
	// Name is "mysql" (MariaDB too), "postgres" or "sqlite".
	Name string
	// Now is the current UTC time of the database.
	Now string
	// ForUpdate ends a SELECT that locks its rows.
	ForUpdate string

	micros string
}

// Of tells the dialect of db.
func Of(db *bun.DB) (Dialect, error) {
	switch db.Dialect().Name() {
	case dialect.MySQL:
		return Dialect{"mysql", "UTC_TIMESTAMP(6)", " FOR UPDATE", "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', %s)"}, nil
	case dialect.PG:
		return Dialect{"postgres", "statement_timestamp()", " FOR UPDATE", "(EXTRACT(EPOCH FROM %s) * 1000000)::bigint"}, nil
	case dialect.SQLite: // a transaction that writes has the whole database to itself
		return Dialect{
			"sqlite", "(strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')", "",
			"(CAST(strftime('%%s', %[1]s) AS INTEGER) * 1000000 + CAST(substr(%[1]s || '000000', 21, 6) AS INTEGER))",
		}, nil
	}
	return Dialect{}, fmt.Errorf("the demo runs on MySQL, MariaDB, PostgreSQL and SQLite, not on %v", db.Dialect().Name())
}

// Micros is an expression for the column's time as microseconds since 1970, NULL for NULL.
func (d Dialect) Micros(column string) string { return fmt.Sprintf(d.micros, column) }

// Instant is a time as the database's columns take it.
func (d Dialect) Instant(t time.Time) string {
	s := t.UTC().Format("2006-01-02 15:04:05.000000")
	if d.Name == "postgres" {
		s += "+00"
	}
	return s
}

// Ignore ends an INSERT that leaves an existing row with the same key alone.
func (d Dialect) Ignore(key string) string {
	if d.Name == "mysql" {
		return " ON DUPLICATE KEY UPDATE " + key + " = " + key
	}
	return " ON CONFLICT (" + key + ") DO NOTHING"
}

// ReadCommitted are the options of the demo's transactions.
func (d Dialect) ReadCommitted() *sql.TxOptions {
	if d.Name == "sqlite" {
		return nil
	}
	return &sql.TxOptions{Isolation: sql.LevelReadCommitted}
}
