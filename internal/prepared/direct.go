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
// argument of a statement it has pgx prepare the statement once for each connection, whatever its default mode is.
func caching(driverConn any) any {
	conn := reflect.ValueOf(driverConn).MethodByName("Conn")
	if !conn.IsValid() || conn.Type().NumIn() != 0 || conn.Type().NumOut() != 1 {
		return nil
	}
	config := conn.Call(nil)[0].MethodByName("Config")
	if !config.IsValid() || config.Type().NumIn() != 0 || config.Type().NumOut() != 1 {
		return nil
	}
	fields := reflect.Indirect(config.Call(nil)[0])
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
// The names are constants, or the linker would keep all methods of all types.
func process(driverConn any) uint64 {
	v := reflect.ValueOf(driverConn)
	for _, method := range []func(reflect.Value) reflect.Value{
		func(v reflect.Value) reflect.Value { return v.MethodByName("Conn") },
		func(v reflect.Value) reflect.Value { return v.MethodByName("PgConn") },
		func(v reflect.Value) reflect.Value { return v.MethodByName("PID") },
	} {
		m := method(v)
		if !m.IsValid() || m.Type().NumIn() != 0 || m.Type().NumOut() != 1 {
			return 0
		}
		v = m.Call(nil)[0]
	}
	if !v.CanUint() {
		return 0
	}
	return v.Uint()
}
