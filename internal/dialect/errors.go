package dialect

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"reflect"
	"slices"
	"strings"
	"sync"
)

// Class says what a database error means for the work that met it.
type Class int

// The classes of database errors.
const (
	// Other is any error that says nothing about the transaction: the handler's own, say. It
	// counts as an attempt.
	Other Class = iota
	// TxRetry means the transaction lost a race (deadlock, lock wait, snapshot): it is poisoned
	// and run again, uncounted.
	TxRetry
	// Conn means the connection or the server went away: it is run again, uncounted, and the
	// outcome of a COMMIT is read back.
	Conn
	// Duplicate means a unique key refused the row: on a key of ours, the work has been done.
	Duplicate
	// Unavailable means the database refuses writes for now (read-only, out of disk): it is tried
	// again later, uncounted.
	Unavailable
	// Data means that the values do not fit and never will: no attempt can succeed.
	Data
	// Schema means that tables or statements do not fit each other: it is the code's fault, not
	// the event's, so its consumer is stopped and no attempt counts.
	Schema
)

// String is the class in the words of docs/guarantees.md.
func (c Class) String() string {
	return [...]string{"other", "transaction retry", "connection", "duplicate", "unavailable", "data", "schema"}[c]
}

// Poisons reports whether a transaction that met the class must never commit,
// whatever its handler answers (MariaDB commits what is left of it).
func (c Class) Poisons() bool { return c == TxRetry || c == Conn || c == Unavailable }

// classes is the table of what each database says in each case: error numbers of MySQL and MariaDB,
// SQLSTATEs or their beginnings, and result codes of SQLite, extended ones before primary ones. The
// first match counts.
var classes = []struct { //nolint:gochecknoglobals // a constant table
	class    Class
	mysql    []uint16
	postgres []string
	sqlite   []int
}{
	{TxRetry, []uint16{1213, 1205, 1020, 3572}, []string{"40001", "40P01", "55P03"}, []int{5, 6}},
	{Conn, []uint16{2006, 2013, 1040, 1203, 1226, 1053, 1927, 1317}, []string{"08", "57P0", "53300", "25P03"}, []int{10}},
	{Duplicate, []uint16{1062, 1586}, []string{"23505"}, []int{2067, 1555}},
	{Unavailable, []uint16{1290, 1836, 1021, 1114, 1030}, []string{"25006", "53100"}, []int{8, 13}},
	{Data, []uint16{1406, 1366, 1264, 1265, 1048, 1292, 4025, 3819, 3140, 1153}, []string{"22", "23502", "23514"}, []int{18, 1299, 275}},
	{Schema, []uint16{1054, 1146, 1064, 1267}, []string{"42"}, []int{1}},
}

// Classify tells the class of err for any of the three databases.
// No driver is imported: their errors are known by shape.
func Classify(err error) Class {
	if err == nil {
		return Other
	}
	if number, ok := field(err, mysqlNumber); ok {
		return classOf(func(mysql []uint16, _ []string, _ []int) bool { return slices.Contains(mysql, uint16(number)) })
	}
	var pg interface{ SQLState() string }
	if errors.As(err, &pg) {
		state := pg.SQLState()
		return classOf(func(_ []uint16, postgres []string, _ []int) bool {
			return slices.ContainsFunc(postgres, func(p string) bool { return strings.HasPrefix(state, p) })
		})
	}
	if code, ok := sqliteCode(err); ok {
		return classOf(func(_ []uint16, _ []string, sqlite []int) bool {
			return slices.Contains(sqlite, code) || slices.Contains(sqlite, code&0xff)
		})
	}
	return classOfConnection(err)
}

// IsAway reports whether an error says that the database does not answer, or refuses writes, or that the pool is closed.
func IsAway(err error) bool {
	class := Classify(err)
	return class == Conn || class == Unavailable || IsClosed(err)
}

// IsClosed reports whether an error says that the program has closed its pool, which nothing opens again.
func IsClosed(err error) bool { return errors.Is(err, ErrClosed()) }

// ErrClosed is the error of database/sql for a pool that is closed. The package does not export it, and its words are no promise. It is
// one value, though, which every closed pool answers, and bun, which asks that pool, passes it on: so a pool that was never open tells it.
var ErrClosed = sync.OnceValue(func() error { //nolint:gochecknoglobals // a constant
	db := sql.OpenDB(noConnector{})
	if err := db.Close(); err != nil {
		return err
	}
	return db.PingContext(context.Background())
})

// noConnector is of a pool that connects to nothing.
type noConnector struct{}

var errNoConnector = errors.New("there is nothing to connect to")

// Connect refuses.
func (noConnector) Connect(context.Context) (driver.Conn, error) { return nil, errNoConnector }

// Driver is none: nobody asks for it.
func (noConnector) Driver() driver.Driver { return nil }

func classOf(matches func(mysql []uint16, postgres []string, sqlite []int) bool) Class {
	for _, c := range classes {
		if matches(c.mysql, c.postgres, c.sqlite) {
			return c.class
		}
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
	for _, s := range []string{
		"invalid connection", "busy buffer", "commit unexpectedly resulted in rollback", "conn closed",
		"failed to connect", "unexpected EOF", "bad connection",
	} {
		if strings.Contains(text, s) {
			return Conn
		}
	}
	return Other
}

// sqliteCode is the extended result code of an error of modernc.org/sqlite or of mattn/go-sqlite3.
func sqliteCode(err error) (int, bool) {
	var modernc interface{ Code() int }
	if errors.As(err, &modernc) {
		return modernc.Code(), true
	}
	return field(err, mattnCode)
}

// mysqlNumber reads the Number field of *mysql.MySQLError without importing the driver.
func mysqlNumber(v reflect.Value) (int, bool) {
	if v.Kind() != reflect.Pointer || v.IsNil() || v.Elem().Kind() != reflect.Struct || v.Elem().Type().Name() != "MySQLError" {
		return 0, false
	}
	f := v.Elem().FieldByName("Number")
	if !f.IsValid() || f.Kind() != reflect.Uint16 {
		return 0, false
	}
	return int(f.Uint()), true
}

// mattnCode reads the ExtendedCode field of sqlite3.Error without importing the driver.
func mattnCode(v reflect.Value) (int, bool) {
	if v.Kind() == reflect.Pointer && !v.IsNil() {
		v = v.Elem()
	}
	if v.Kind() != reflect.Struct || v.Type().Name() != "Error" {
		return 0, false
	}
	f := v.FieldByName("ExtendedCode")
	if !f.IsValid() || f.Kind() != reflect.Int {
		return 0, false
	}
	return int(f.Int()), true
}

// field reads a number of err, or of an error inside of it.
func field(err error, read func(reflect.Value) (int, bool)) (int, bool) {
	if n, ok := read(reflect.ValueOf(err)); ok {
		return n, true
	}
	var inner []error
	switch wrapped := err.(type) { //nolint:errorlint // this is what looks inside
	case interface{ Unwrap() error }:
		inner = []error{wrapped.Unwrap()}
	case interface{ Unwrap() []error }:
		inner = wrapped.Unwrap()
	}
	for _, e := range inner {
		if e == nil {
			continue
		}
		if n, ok := field(e, read); ok {
			return n, true
		}
	}
	return 0, false
}
