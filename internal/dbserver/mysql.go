package dbserver

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
)

// mysqlSettings are the options that depend on the settings.
var mysqlSettings = map[Settings][]string{ //nolint:gochecknoglobals // a constant table
	Durable:  {"--innodb-flush-log-at-trx-commit=1", "--innodb-buffer-pool-size=64M"},
	Large:    {"--innodb-flush-log-at-trx-commit=1", "--innodb-buffer-pool-size=2G", "--innodb-flush-method=O_DIRECT"},
	Careless: {"--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=64M"},
}

// logFile is the size of the redo log, which must be known when the data directory is made.
var logFile = map[Settings]string{ //nolint:gochecknoglobals // a constant table
	Durable: "32M", Large: "1G", Careless: "32M",
}

// redoCapacity is the same for MySQL 9, which divides it into 32 files.
var redoCapacity = map[Settings]string{ //nolint:gochecknoglobals // a constant table
	Durable: "64M", Large: "128M", Careless: "64M",
}

// mysqlKind is how one product of the MySQL family is found, initialised and started.
type mysqlKind struct {
	name       string
	daemon     string
	basics     func(data string, settings Settings) []string // what the initialisation and the server must agree on
	initialise func(daemon string, basics []string, data string) error
	extra      []string
}

// startMySQL starts MariaDB, or MySQL where only that is installed.
func startMySQL(settings Settings, o options) (*Server, error) {
	daemon, err := find("mariadbd")
	if err != nil {
		if kind, e := mysql9(); e == nil {
			return kind.start(settings, o)
		}
		return nil, err
	}
	return mysqlKind{
		name: "mysql", daemon: daemon,
		basics: func(data string, settings Settings) []string {
			// A server that was unpacked somewhere has its messages and its first tables there.
			base := "--basedir=" + filepath.Dir(filepath.Dir(daemon))
			return append(familyBasics(data), base, "--innodb-log-file-size="+logFile[settings])
		},
		initialise: initMariaDB,
	}.start(settings, o)
}

// startMySQL9 starts MySQL 9 or later, never MariaDB.
func startMySQL9(settings Settings, o options) (*Server, error) {
	kind, err := mysql9()
	if err != nil {
		return nil, err
	}
	return kind.start(settings, o)
}

func mysql9() (mysqlKind, error) {
	daemon, err := findMySQL9()
	if err != nil {
		return mysqlKind{}, err
	}
	return mysqlKind{
		name: "mysql9", daemon: daemon, basics: mysql9Basics,
		initialise: initMySQL9,
		extra:      []string{"--mysqlx=OFF"}, // its second port
	}, nil
}

func initMariaDB(_ string, basics []string, _ string) error {
	installer, err := find("mariadb-install-db")
	if err != nil {
		return err
	}
	return output(exec.Command(installer, append(basics, "--auth-root-authentication-method=normal", "--skip-test-db")...))
}

// initMySQL9 lets root in from 127.0.0.1: a server that resolves no names does not take that for the localhost of the root
// that MySQL makes.
func initMySQL9(daemon string, basics []string, data string) error {
	accounts := data + ".sql"
	const statements = "CREATE USER root@'127.0.0.1';\nGRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;\n"
	if err := os.WriteFile(accounts, []byte(statements), 0o600); err != nil {
		return err
	}
	defer os.Remove(accounts)
	return output(exec.Command(daemon, append(basics, "--initialize-insecure", "--init-file="+accounts)...))
}

func (k mysqlKind) start(settings Settings, o options) (*Server, error) {
	return onFreePort(func(port string) (*Server, error) {
		variant := fmt.Sprint(k.basics("", settings))
		dir, err := newDataDir(k.name, k.daemon, variant, nil, o, func(data string) error {
			return k.initialise(k.daemon, k.basics(data, settings), data)
		})
		if err != nil {
			return nil, err
		}
		args := append(k.basics(dir.data, settings),
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
			"--performance-schema=OFF",
		)
		args = append(append(args, mysqlSettings[settings]...), k.extra...)
		if o.outside != "" {
			args = append(args, "--bind-address=*")
		}
		if o.tls != nil {
			args = append(args, "--ssl-cert="+o.tls.Cert, "--ssl-key="+o.tls.Key)
		}
		u := &url.URL{Scheme: "mysql", User: url.User("root"), Host: "127.0.0.1:" + port, Path: "/"}
		return launch(&Server{
			URL: u, dir: dir, options: o, end: syscall.SIGKILL,
			command: func() *exec.Cmd { return exec.Command(k.daemon, args...) },
			ready: func() error {
				return answers("mysql", MySQLConfig(u).FormatDSN(), "SELECT @@datadir", dir.data)
			},
		})
	})
}

func mysql9Basics(data string, settings Settings) []string {
	return append(familyBasics(data),
		"--innodb-redo-log-capacity="+redoCapacity[settings],
		"--secure-file-priv=NULL", // no LOAD DATA and no INTO OUTFILE; the packaged default is a directory that may not exist
		"--auto-generate-certs=OFF",
		"--caching-sha2-password-auto-generate-rsa-keys=OFF",
	)
}

func familyBasics(data string) []string {
	args := []string{"--no-defaults", "--datadir=" + data}
	if os.Getuid() == 0 {
		args = append(args, "--user=root")
	}
	return args
}

// findMySQL9 looks for a mysqld that is MySQL's, of version 9 or later, in PATH, where systems keep servers,
// and where scripts/newer-databases puts it.
func findMySQL9() (string, error) {
	var paths []string
	if path, err := find("mysqld"); err == nil {
		paths = append(paths, path)
	}
	for _, dir := range unpackedDirs() {
		paths = append(paths, filepath.Join(dir, "mysql", "usr", "sbin", "mysqld"))
	}
	for _, path := range paths {
		if isMySQL9(path) {
			return path, nil
		}
	}
	return "", errors.New("mysqld of MySQL 9 is not installed")
}

// unpackedDirs is where scripts/newer-databases unpacks servers.
func unpackedDirs() []string {
	if dir := os.Getenv("BLUECONE_DATABASES"); dir != "" {
		return []string{dir}
	}
	var dirs []string
	if cache, err := os.UserCacheDir(); err == nil {
		dirs = append(dirs, filepath.Join(cache, "bluecone", "databases"))
	}
	return append(dirs, "/var/cache/bluecone/databases")
}

var mysqlVersion = regexp.MustCompile(`Ver (\d+)\.\d+\.\d+`)

func isMySQL9(daemon string) bool {
	if path, err := filepath.EvalSymlinks(daemon); err != nil || filepath.Base(path) == "mariadbd" {
		return false
	}
	out, err := exec.CommandContext(context.Background(), daemon, "--version").Output()
	if err != nil {
		return false
	}
	found := mysqlVersion.FindSubmatch(out)
	if found == nil || regexp.MustCompile(`(?i)mariadb`).Match(out) {
		return false
	}
	major, err := strconv.Atoi(string(found[1]))
	return err == nil && major >= 9
}
