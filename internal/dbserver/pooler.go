package dbserver

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

const poolerConfig = `[databases]
* = host=%s port=%s user=%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %s
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 4
max_client_conn = 200
`

// StartPooler starts a PgBouncer that gives each transaction any of a few connections to the PostgreSQL
// database of the URL.
func StartPooler(database *url.URL) (*Server, error) {
	daemon, err := find("pgbouncer")
	if err != nil {
		return nil, err
	}
	cred, err := unprivileged()
	if err != nil {
		return nil, err
	}
	return onFreePort(func(port string) (*Server, error) {
		dir, err := tempDir("", "pgbouncer")
		if err != nil {
			return nil, err
		}
		config := filepath.Join(dir.root, "pgbouncer.ini")
		text := fmt.Sprintf(poolerConfig, database.Hostname(), database.Port(), database.User.Username(), port)
		err = errors.Join(os.WriteFile(config, []byte(text), 0o644), os.Chmod(dir.root, 0o711)) //nolint:gosec // its user reads it
		if err != nil {
			dir.remove()
			return nil, err
		}
		u := *database
		u.Host = "127.0.0.1:" + port
		return launch(&Server{
			URL: &u, dir: dir, end: syscall.SIGQUIT,
			command: func() *exec.Cmd { return as(cred, exec.Command(daemon, "-q", config)) },
			ready:   func() error { return reachable(u.String()) },
		})
	})
}

func reachable(dsn string) error {
	pool, err := sql.Open("pgx", dsn)
	if err != nil {
		return err
	}
	defer pool.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	return pool.PingContext(ctx)
}
