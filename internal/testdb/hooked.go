package testdb

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"net/url"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/mysqldialect"
	"github.com/uptrace/bun/dialect/pgdialect"
	"github.com/uptrace/bun/dialect/sqlitedialect"
	"modernc.org/sqlite"

	"github.com/bluecone-go/bluecone/internal/dbserver"
	"github.com/bluecone-go/bluecone/internal/faultdb"
)

// ConnectHooked is [Connect] for a pool whose every statement goes by way of a hook.
func ConnectHooked(dsn string, h faultdb.Hook) (*bun.DB, error) {
	u, err := url.Parse(dsn)
	if err != nil {
		return nil, err
	}
	switch u.Scheme {
	case "sqlite":
		pool := sql.OpenDB(faultdb.Wrap(file("file:"+u.EscapedPath()+sqliteSettings), h))
		pool.SetMaxOpenConns(filePoolSize)
		return bun.NewDB(pool, sqlitedialect.New()), nil
	case "mysql":
		cfg := dbserver.MySQLConfig(u)
		cfg.Logger = &mysql.NopLogger{} // it would tell of each cut
		c, err := mysql.NewConnector(cfg)
		if err != nil {
			return nil, err
		}
		return bun.NewDB(sized(sql.OpenDB(faultdb.Wrap(c, h))), mysqldialect.New()), nil
	default:
		cfg, err := pgx.ParseConfig(dsn)
		if err != nil {
			return nil, err
		}
		return bun.NewDB(sized(sql.OpenDB(faultdb.Wrap(stdlib.GetConnector(*cfg), h))), pgdialect.New()), nil
	}
}

// file is the name of an SQLite database, with settings.
type file string

// Connect implements [driver.Connector].
func (f file) Connect(context.Context) (driver.Conn, error) { return f.Driver().Open(string(f)) }

// Driver implements [driver.Connector].
func (f file) Driver() driver.Driver { return &sqlite.Driver{} }
