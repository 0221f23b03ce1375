package testdb

import (
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// flushLog is innodb_flush_log_at_trx_commit: 0 is fast, and loses the last second of commits if
// the server is killed. A test that kills the server needs 1 and a server of its own.
const flushLog = "0"

// bufferPool and logFile keep a server small: several run at once, one per test process.
const (
	bufferPool = "64M"
	logFile    = "8M"
)

// startMySQL starts MariaDB, or MySQL where only that is installed.
func startMySQL() (*url.URL, func(), error) {
	daemon, err := find("mariadbd", "mysqld")
	if err != nil {
		return nil, nil, err
	}
	return onFreePort(func(port string) (*url.URL, func(), error) {
		dir, err := newDataDir("mysql", daemon, nil, func(data string) error { return initMySQL(daemon, data) })
		if err != nil {
			return nil, nil, err
		}
		args := append(mysqlBasics(dir.data),
			"--bind-address=127.0.0.1",
			"--port="+port,
			"--socket="+filepath.Join(dir.root, "s.sock"),
			"--pid-file="+filepath.Join(dir.root, "pid"),
			"--innodb-buffer-pool-size="+bufferPool,
			"--innodb-flush-log-at-trx-commit="+flushLog,
			"--innodb-lock-wait-timeout=20", // seconds; short of every test's own limit
			"--performance-schema=OFF",
			"--max-connections=500",
			"--max-connect-errors=1000000",
			"--skip-log-bin",
			"--skip-name-resolve",
			"--loose-mysqlx=OFF", // MySQL only: its second port
		)
		u := &url.URL{Scheme: "mysql", User: url.User("root"), Host: "127.0.0.1:" + port, Path: "/"}
		stop, err := launch(exec.Command(daemon, args...), dir, syscall.SIGKILL, func() error {
			return answers("mysql", mysqlConfig(u).FormatDSN(), "SELECT @@datadir", dir.data)
		})
		return u, stop, err
	})
}

func initMySQL(daemon, data string) error {
	if installer, err := find("mariadb-install-db"); err == nil {
		return output(exec.Command(installer, append(mysqlBasics(data), "--auth-root-authentication-method=normal", "--skip-test-db")...))
	}
	return output(exec.Command(daemon, append(mysqlBasics(data), "--initialize-insecure")...))
}

// mysqlBasics are the options that the installer and the server must agree on.
func mysqlBasics(data string) []string {
	args := []string{"--no-defaults", "--datadir=" + data, "--loose-innodb-log-file-size=" + logFile}
	if os.Getuid() == 0 {
		args = append(args, "--user=root")
	}
	return args
}
