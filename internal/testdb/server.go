package testdb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// instance is a server of this test process.
type instance struct {
	base *url.URL
	stop func()
	err  error
	once sync.Once
}

var servers = map[string]*instance{"mysql": {}, "postgres": {}} //nolint:gochecknoglobals // one of each per process

func (s *instance) url(database string) string {
	u := *s.base
	u.Path = "/" + database
	if database == "" && u.Scheme == "postgres" {
		u.Path = "/postgres"
	}
	return u.String()
}

// Main runs the tests of a package, stops the servers, and fails the package if it left a
// goroutine behind. Call it from TestMain.
func Main(m *testing.M) {
	code := m.Run()
	for _, s := range servers {
		if s.stop != nil {
			s.stop()
		}
	}
	if code == 0 {
		if err := goleak.Find(goleak.IgnoreTopFunction("github.com/bluecone-go/bluecone/internal/testdb.keepThread")); err != nil {
			fmt.Fprintln(os.Stderr, "goroutines left behind:", err)
			code = 1
		}
	}
	os.Exit(code)
}

func server(t *testing.T, dialect string) *instance {
	t.Helper()
	s := servers[dialect]
	s.once.Do(func() {
		if dsn := os.Getenv("BLUECONE_TEST_" + strings.ToUpper(dialect) + "_DSN"); dsn != "" {
			s.base, s.err = url.Parse(dsn)
			return
		}
		start := map[string]func() (*url.URL, func(), error){"mysql": startMySQL, "postgres": startPostgres}[dialect]
		s.base, s.stop, s.err = start()
	})
	if s.err != nil {
		unavailable(t, dialect, s.err)
	}
	return s
}

func startMySQL() (*url.URL, func(), error) {
	daemon, err := find("mariadbd", "mysqld")
	if err != nil {
		return nil, nil, err
	}
	data, err := dataDir("mysql", nil, func(dir string) error { return initMySQL(daemon, dir) })
	if err != nil {
		return nil, nil, err
	}
	port := freePort()
	args := append([]string{"--no-defaults"}, asRoot()...)
	args = append(args, "--datadir="+data, "--bind-address=127.0.0.1", "--port="+port, "--socket="+filepath.Join(data, "s.sock"), "--pid-file="+filepath.Join(data, "pid"),
		"--innodb-buffer-pool-size=64M", "--innodb-flush-log-at-trx-commit=0", "--performance-schema=OFF", "--max-connections=500", "--skip-log-bin", "--innodb-lock-wait-timeout=20")
	u := &url.URL{Scheme: "mysql", User: url.User("root"), Host: "127.0.0.1:" + port}
	stop, err := launch(exec.Command(daemon, args...), data, func() error { return ping("mysql", mysqlConfig(u).FormatDSN()) })
	return u, stop, err
}

func initMySQL(daemon, dir string) error {
	args := append([]string{"--no-defaults", "--datadir=" + dir}, asRoot()...)
	if installer, err := find("mariadb-install-db"); err == nil {
		return output(exec.Command(installer, append(args, "--auth-root-authentication-method=normal", "--skip-test-db")...))
	}
	return output(exec.Command(daemon, append(args, "--initialize-insecure")...))
}

func asRoot() []string {
	if os.Getuid() == 0 {
		return []string{"--user=root"}
	}
	return nil
}

func startPostgres() (*url.URL, func(), error) {
	initdb, err := find("initdb")
	if err != nil {
		return nil, nil, err
	}
	cred, err := unprivileged()
	if err != nil {
		return nil, nil, err
	}
	data, err := dataDir("postgres", cred, func(dir string) error {
		return output(as(cred, exec.Command(initdb, "-D", dir, "-A", "trust", "-U", "postgres", "-N", "-E", "UTF8", "--no-locale")))
	})
	if err != nil {
		return nil, nil, err
	}
	port := freePort()
	cmd := as(cred, exec.Command(filepath.Join(filepath.Dir(initdb), "postgres"), "-D", data, "-p", port, "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="+data,
		"-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "max_connections=500", "-c", "shared_buffers=64MB"))
	u := &url.URL{Scheme: "postgres", User: url.User("postgres"), Host: "127.0.0.1:" + port, RawQuery: "sslmode=disable"}
	stop, err := launch(cmd, data, func() error { return ping("pgx", (&instance{base: u}).url("")) })
	return u, stop, err
}

// unprivileged is a user PostgreSQL accepts: nil for ourselves, unless we are root.
func unprivileged() (*syscall.Credential, error) {
	if os.Getuid() != 0 {
		return nil, nil //nolint:nilnil // nobody else is needed
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err1 == nil && err2 == nil {
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
		}
	}
	return nil, errors.New("PostgreSQL refuses to run as root, and there is no user postgres or nobody")
}

func as(cred *syscall.Credential, cmd *exec.Cmd) *exec.Cmd {
	if cred != nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: cred}
		cmd.Dir = "/"
	}
	return cmd
}

// dataDir makes an initialised data directory for this process.
func dataDir(kind string, owner *syscall.Credential, initialise func(dir string) error) (string, error) {
	root, err := os.MkdirTemp("", "bluecone-"+kind+"-")
	if err != nil {
		return "", err
	}
	data := filepath.Join(root, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		return "", err
	}
	if owner != nil {
		if err := errors.Join(os.Chmod(root, 0o755), os.Chown(data, int(owner.Uid), int(owner.Gid))); err != nil { //nolint:gosec // another user reads it
			return "", err
		}
	}
	if err := initialise(data); err != nil {
		_ = os.RemoveAll(root)
		return "", fmt.Errorf("initialise %s: %w", kind, err)
	}
	return data, nil
}

// launch starts a server that dies with this process, and waits until it answers.
func launch(cmd *exec.Cmd, data string, ready func() error) (func(), error) {
	var log strings.Builder
	cmd.Stdout, cmd.Stderr = &log, &log
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	cmd.SysProcAttr.Setpgid = true
	started, quit := make(chan error, 1), make(chan struct{})
	go keepThread(cmd, started, quit)
	if err := <-started; err != nil {
		return nil, err
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	stop := func() {
		_ = cmd.Process.Signal(syscall.SIGKILL)
		close(quit)
		<-exited
		_ = os.RemoveAll(filepath.Dir(data))
	}
	deadline := time.Now().Add(time.Minute)
	for {
		err := ready()
		if err == nil {
			return stop, nil
		}
		select {
		case e := <-exited:
			return nil, fmt.Errorf("%s ended: %w: %s", filepath.Base(cmd.Path), e, log.String())
		case <-time.After(30 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			stop()
			return nil, fmt.Errorf("%s does not answer: %w", filepath.Base(cmd.Path), err)
		}
	}
}

// keepThread starts cmd from a thread that lives as long as the server: the kernel sends
// the parent-death signal when the thread that started a process ends.
func keepThread(cmd *exec.Cmd, started chan<- error, quit <-chan struct{}) {
	runtime.LockOSThread()
	started <- cmd.Start()
	<-quit
}

func ping(driver, dsn string) error {
	pool, err := sql.Open(driver, dsn)
	if err != nil {
		return err
	}
	defer pool.Close() //nolint:errcheck // nothing to lose
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	return pool.PingContext(ctx)
}

func output(cmd *exec.Cmd) error {
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", filepath.Base(cmd.Path), err, out)
	}
	return nil
}

// find looks for a program in PATH and where Debian keeps servers.
func find(names ...string) (string, error) {
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
		candidates := []string{"/usr/sbin/" + name}
		versions, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name) // a bad pattern would be ours
		slices.Reverse(versions)
		for _, path := range append(candidates, versions...) {
			if st, err := os.Stat(path); err == nil && !st.IsDir() {
				return path, nil
			}
		}
	}
	return "", fmt.Errorf("%s is not installed", strings.Join(names, " or "))
}

func freePort() string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "0"
	}
	defer l.Close() //nolint:errcheck // its number is all we want
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}
