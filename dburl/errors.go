package dburl

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"slices"
	"strings"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
	"modernc.org/sqlite"
)

// IsDuplicate reports whether a unique key refused the row.
func IsDuplicate(err error) bool {
	return says(err, []uint16{1062, 1586}, []string{"23505"}, []int{2067, 1555})
}

// IsConflict reports whether the transaction lost to another one: by a deadlock, because it waited too long for a
// lock, or because its snapshot was too old. It has no effect, and may be run again.
func IsConflict(err error) bool {
	return says(err, []uint16{1213, 1205, 1020, 3572}, []string{"40001", "40P01", "55P03"}, []int{5, 6})
}

// IsSchema reports whether the statement does not fit the tables: a migration is missing, or the statement is wrong.
func IsSchema(err error) bool {
	return says(err, []uint16{1054, 1146, 1064, 1267}, []string{"42"}, []int{1})
}

// IsLost reports whether the connection or the server went away. If that was at COMMIT, the outcome is unknown.
func IsLost(err error) bool {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	if says(err, []uint16{2006, 2013, 1040, 1203, 1226, 1053, 1927, 1317}, []string{"08", "57P0", "53300", "25P03"}, []int{10}) {
		return true
	}
	for _, lost := range []error{
		driver.ErrBadConn, sql.ErrConnDone, io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, mysql.ErrInvalidConn,
		mysql.ErrBusyBuffer,
	} {
		if errors.Is(err, lost) {
			return true
		}
	}
	var network net.Error
	var connecting *pgconn.ConnectError
	return errors.As(err, &network) || errors.As(err, &connecting) || strings.Contains(err.Error(), "conn closed")
}

// IsOfDatabase reports whether a database said the error, or the way to it. Other errors are those of the program.
func IsOfDatabase(err error) bool {
	var my *mysql.MySQLError
	var pg *pgconn.PgError
	var lite *sqlite.Error
	return errors.As(err, &my) || errors.As(err, &pg) || errors.As(err, &lite) || IsLost(err)
}

// says reports whether err has one of MySQL's and MariaDB's numbers, a SQLSTATE of PostgreSQL that begins so, or one of
// SQLite's codes, extended or primary.
func says(err error, numbers []uint16, states []string, codes []int) bool {
	var my *mysql.MySQLError
	var pg *pgconn.PgError
	var lite *sqlite.Error
	switch {
	case errors.As(err, &my):
		return slices.Contains(numbers, my.Number)
	case errors.As(err, &pg):
		return slices.ContainsFunc(states, func(s string) bool { return strings.HasPrefix(pg.Code, s) })
	case errors.As(err, &lite):
		return slices.Contains(codes, lite.Code()) || slices.Contains(codes, lite.Code()&0xff)
	}
	return false
}
