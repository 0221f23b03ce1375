package prepared

import (
	"context"
	"database/sql"
	"reflect"
)

// isDirect reports whether the driver speaks to the server itself, and not to somebody between.
func isDirect(ctx context.Context, db *sql.DB) (bool, error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	var told, is uint64
	if err := conn.Raw(func(driverConn any) error {
		told = process(driverConn)
		return nil
	}); err != nil || told == 0 {
		return false, err
	}
	err = conn.QueryRowContext(ctx, "SELECT pg_backend_pid()").Scan(&is)
	return told == is, err
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
