package dbserver

import (
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
)

// mysqlSettings are the options that depend on the settings. Fast loses the last second of
// commits if the server is killed.
var mysqlSettings = map[Settings][]string{ //nolint:gochecknoglobals // a constant table
	Fast:      {"--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=64M", "--performance-schema=OFF"},
	Crashable: {"--innodb-flush-log-at-trx-commit=2", "--innodb-buffer-pool-size=64M", "--performance-schema=OFF"},
	Durable:   {"--innodb-flush-log-at-trx-commit=1", "--innodb-buffer-pool-size=2G", "--innodb-flush-method=O_DIRECT", "--performance-schema=OFF"},
}

// logFile is the size of the redo log, which must be known when the data directory is made.
var logFile = map[Settings]string{Fast: "8M", Crashable: "8M", Durable: "1G"} //nolint:gochecknoglobals // a constant table

// startMySQL starts MariaDB, or MySQL where only that is installed.
func startMySQL(settings Settings, o options) (*Server, error) {
	daemon, err := find("mariadbd", "mysqld")
	if err != nil {
		return nil, err
	}
	return onFreePort(func(port string) (*Server, error) {
		dir, err := newDataDir("mysql", daemon, logFile[settings], nil, o, func(data string) error { return initMySQL(daemon, data, settings) })
		if err != nil {
			return nil, err
		}
		args := append(mysqlBasics(dir.data, settings),
			"--bind-address=127.0.0.1",
			"--port="+port,
			"--socket="+filepath.Join(dir.root, "s.sock"),
			"--pid-file="+filepath.Join(dir.root, "pid"),
			"--tmpdir="+dir.data,            // a server that starts removes what others have in theirs
			"--innodb-lock-wait-timeout=20", // seconds; short of every test's own limit
			"--max-connections="+strconv.Itoa(o.connections),
			"--max-connect-errors=1000000",
			"--skip-log-bin",
			"--skip-name-resolve",
			"--loose-mysqlx=OFF", // MySQL only: its second port
		)
		args = append(args, mysqlSettings[settings]...)
		u := &url.URL{Scheme: "mysql", User: url.User("root"), Host: "127.0.0.1:" + port, Path: "/"}
		return launch(&Server{
			URL: u, dir: dir, options: o, end: syscall.SIGKILL,
			command: func() *exec.Cmd { return exec.Command(daemon, args...) },
			ready: func() error {
				return answers("mysql", MySQLConfig(u).FormatDSN(), "SELECT @@datadir", dir.data)
			},
		})
	})
}

func initMySQL(daemon, data string, settings Settings) error {
	if installer, err := find("mariadb-install-db"); err == nil {
		return output(exec.Command(installer, append(mysqlBasics(data, settings), "--auth-root-authentication-method=normal", "--skip-test-db")...))
	}
	return output(exec.Command(daemon, append(mysqlBasics(data, settings), "--initialize-insecure")...))
}

// mysqlBasics are the options that the installer and the server must agree on.
func mysqlBasics(data string, settings Settings) []string {
	args := []string{"--no-defaults", "--datadir=" + data, "--loose-innodb-log-file-size=" + logFile[settings]}
	if os.Getuid() == 0 {
		args = append(args, "--user=root")
	}
	return args
}
