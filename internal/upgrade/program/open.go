package program

import (
	"database/sql"
	"fmt"
	"net/url"
	"strings"

	_ "github.com/go-sql-driver/mysql" // the driver "mysql"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/mysqldialect"
	"github.com/uptrace/bun/dialect/pgdialect"
	"github.com/uptrace/bun/dialect/sqlitedialect"
	_ "modernc.org/sqlite" // the driver "sqlite"
)

// open opens the database of a URL without help of the releases: the two have no common way to do it.
func open(dsn string) (*bun.DB, error) {
	u, err := url.Parse(dsn)
	if err != nil {
		return nil, err
	}
	password, _ := u.User.Password()
	switch u.Scheme {
	case "sqlite":
		pool, err := sql.Open("sqlite", "file:"+u.EscapedPath()+"?_txlock=immediate&_pragma=busy_timeout(30000)&_pragma=journal_mode(WAL)")
		if err != nil {
			return nil, err
		}
		pool.SetMaxOpenConns(4)
		return bun.NewDB(pool, sqlitedialect.New()), nil
	case "mysql":
		pool, err := sql.Open("mysql", fmt.Sprintf("%s:%s@tcp(%s)/%s?parseTime=true&interpolateParams=true", u.User.Username(), password, u.Host,
			strings.Trim(u.Path, "/")))
		if err != nil {
			return nil, err
		}
		pool.SetMaxOpenConns(20)
		return bun.NewDB(pool, mysqldialect.New()), nil
	default:
		query := u.Query()
		query.Set("default_query_exec_mode", "simple_protocol")
		u.RawQuery = query.Encode()
		pool, err := sql.Open("pgx", u.String())
		if err != nil {
			return nil, err
		}
		pool.SetMaxOpenConns(20)
		return bun.NewDB(pool, pgdialect.New()), nil
	}
}
