package dialect

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"reflect"
	"strings"
)

// Class says what a database error means for the work that met it.
type Class int

// The classes of database errors, from the table of docs/guarantees.md.
const (
	// Other is any error that says nothing about the transaction: the handler's own, say.
	Other Class = iota
	// TxRetry means the transaction lost a race (deadlock, lock wait, snapshot): run it again.
	TxRetry
	// Conn means the connection or the server went away: the outcome of a COMMIT is unknown.
	Conn
	// Duplicate means a unique key refused the row.
	Duplicate
	// Unavailable means the database refuses writes for now: read-only, out of disk.
	Unavailable
)

// Poisons reports whether a transaction that met the class must never commit,
// whatever its handler answers (MariaDB commits what is left of it).
func (c Class) Poisons() bool { return c == TxRetry || c == Conn || c == Unavailable }

var mysqlClass = map[uint16]Class{ //nolint:gochecknoglobals // a constant table
	1213: TxRetry, 1205: TxRetry, 1020: TxRetry, 3572: TxRetry,
	2006: Conn, 2013: Conn, 1040: Conn, 1203: Conn, 1226: Conn, 1053: Conn, 1927: Conn, 1317: Conn,
	1062: Duplicate, 1586: Duplicate,
	1290: Unavailable, 1836: Unavailable, 1021: Unavailable, 1114: Unavailable, 1030: Unavailable,
}

var sqliteClass = map[int]Class{ //nolint:gochecknoglobals // a constant table, by primary result code
	5: TxRetry, 6: TxRetry, 8: Unavailable, 10: Conn, 13: Unavailable,
}

// Classify tells the class of err for any of the three databases.
// No driver is imported: their errors are known by shape.
func Classify(err error) Class {
	if err == nil {
		return Other
	}
	if code, ok := mysqlNumber(err); ok {
		return mysqlClass[code]
	}
	var pg interface{ SQLState() string }
	if errors.As(err, &pg) {
		return postgresClass(pg.SQLState())
	}
	var lite interface{ Code() int }
	if errors.As(err, &lite) {
		return classOfSQLite(lite.Code())
	}
	return classOfConnection(err)
}

func classOfSQLite(code int) Class {
	if code == 2067 || code == 1555 { // SQLITE_CONSTRAINT_UNIQUE, _PRIMARYKEY
		return Duplicate
	}
	return sqliteClass[code&0xff]
}

func postgresClass(state string) Class {
	switch {
	case state == "40001", state == "40P01", state == "55P03":
		return TxRetry
	case state == "23505":
		return Duplicate
	case strings.HasPrefix(state, "08"), strings.HasPrefix(state, "57P0"), state == "53300", state == "25P03":
		return Conn
	case state == "25006", state == "53100":
		return Unavailable
	}
	return Other
}

func classOfConnection(err error) Class {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return Other
	}
	var netErr net.Error
	switch {
	case errors.Is(err, driver.ErrBadConn), errors.Is(err, sql.ErrConnDone), errors.Is(err, io.EOF),
		errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed), errors.As(err, &netErr):
		return Conn
	}
	text := err.Error()
	for _, s := range []string{"invalid connection", "busy buffer", "commit unexpectedly resulted in rollback", "conn closed", "failed to connect", "unexpected EOF", "bad connection"} {
		if strings.Contains(text, s) {
			return Conn
		}
	}
	return Other
}

// mysqlNumber reads the Number field of *mysql.MySQLError without importing the driver.
func mysqlNumber(err error) (uint16, bool) {
	for ; err != nil; err = errors.Unwrap(err) {
		v := reflect.ValueOf(err)
		if v.Kind() == reflect.Pointer && !v.IsNil() && v.Elem().Kind() == reflect.Struct && v.Elem().Type().Name() == "MySQLError" {
			if f := v.Elem().FieldByName("Number"); f.IsValid() && f.Kind() == reflect.Uint16 {
				return uint16(f.Uint()), true
			}
		}
	}
	return 0, false
}
