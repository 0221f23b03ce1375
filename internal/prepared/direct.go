package prepared

import (
	"context"
	"database/sql"
	"fmt"
	"reflect"
)

// isDirect reports whether the driver speaks to the server itself, and not to somebody between, and how to ask the driver to
// prepare statements by itself, nil if it cannot.
func isDirect(ctx context.Context, db *sql.DB) (direct bool, mode any, err error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return false, nil, err
	}
	defer conn.Close()
	return ask(ctx, conn)
}

// IsDirect reports whether a connection of pgx to PostgreSQL is one to the server itself, and not to somebody between. Of other
// drivers nobody can tell.
func IsDirect(ctx context.Context, conn *sql.Conn) (bool, error) {
	direct, _, err := ask(ctx, conn)
	return direct, err
}

func ask(ctx context.Context, conn *sql.Conn) (direct bool, mode any, err error) {
	var told, is uint64
	if err := conn.Raw(func(driverConn any) error {
		told, mode = process(driverConn), caching(driverConn)
		return nil
	}); err != nil || told == 0 {
		return false, nil, err
	}
	err = conn.QueryRowContext(ctx, "SELECT pg_backend_pid()").Scan(&is)
	return told == is, mode, err
}

// caching is pgx.QueryExecModeCacheStatement for a connection of pgx that has a cache of statements, else nil. As the first
// argument of a statement it has pgx prepare the statement once for each connection, whatever its default mode is. With nil
// [Statements.Given] adds nothing, so that the default mode counts.
//
// Like [process] it goes by name, because no package of the library imports a driver. The mode is an integer type of pgx's, and 1 is
// this constant in pgx v5. A release of pgx that counts otherwise is found out by the text of the mode, and gets nil.
func caching(driverConn any) any {
	conn, ok := result(reflect.ValueOf(driverConn).MethodByName("Conn"))
	if !ok {
		return nil
	}
	config, ok := result(conn.MethodByName("Config"))
	if !ok {
		return nil
	}
	fields := reflect.Indirect(config)
	if fields.Kind() != reflect.Struct {
		return nil
	}
	size, byDefault := fields.FieldByName("StatementCacheCapacity"), fields.FieldByName("DefaultQueryExecMode")
	if !size.IsValid() || !size.CanInt() || size.Int() <= 0 || !byDefault.IsValid() || !byDefault.CanInt() {
		return nil
	}
	mode := reflect.New(byDefault.Type()).Elem()
	mode.SetInt(1)
	if m := mode.Interface(); fmt.Sprint(m) == "cache statement" {
		return m
	}
	return nil
}

// process is the server's process that a connection of pgx was told of when it began,
// Conn().PgConn().PID(), and 0 for other drivers. By name: no package of the library imports a driver.
func process(driverConn any) uint64 {
	conn, ok := result(reflect.ValueOf(driverConn).MethodByName("Conn"))
	if !ok {
		return 0
	}
	server, ok := result(conn.MethodByName("PgConn"))
	if !ok {
		return 0
	}
	pid, ok := result(server.MethodByName("PID"))
	if !ok || !pid.CanUint() {
		return 0
	}
	return pid.Uint()
}

// result calls a method that takes nothing and returns one value, and reports whether it is there and is such a one. Callers name
// it by a constant, in MethodByName: otherwise the linker would keep all methods of all types.
func result(method reflect.Value) (reflect.Value, bool) {
	if !method.IsValid() || method.Type().NumIn() != 0 || method.Type().NumOut() != 1 {
		return reflect.Value{}, false
	}
	return method.Call(nil)[0], true
}
