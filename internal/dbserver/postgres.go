package dbserver

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

var postgresSettings = map[Settings][]string{ //nolint:gochecknoglobals // a constant table
	Durable:  {"fsync=on", "synchronous_commit=on", "shared_buffers=64MB", "max_wal_size=256MB"},
	Large:    {"fsync=on", "synchronous_commit=on", "shared_buffers=2GB", "max_wal_size=4GB"},
	Careless: {"fsync=off", "synchronous_commit=off", "full_page_writes=off", "shared_buffers=64MB"},
}

func startPostgres(settings Settings, o options) (*Server, error) {
	initdb, err := find("initdb")
	if err != nil {
		return nil, err
	}
	daemon := filepath.Join(filepath.Dir(initdb), "postgres")
	cred, err := unprivileged()
	if err != nil {
		return nil, err
	}
	return onFreePort(func(port string) (*Server, error) {
		dir, err := newDataDir("postgres", daemon, "", cred, o, func(data string) error {
			return output(as(cred, exec.Command(initdb, "-D", data, "-A", "trust", "-U", "postgres", "-N", "-E", "UTF8", "--no-locale")))
		})
		if err != nil {
			return nil, err
		}
		args := []string{"-D", dir.data, "-p", port}
		for _, setting := range append(postgresSettings[settings], "listen_addresses=127.0.0.1", "unix_socket_directories="+dir.data,
			"max_connections="+strconv.Itoa(o.connections)) {
			args = append(args, "-c", setting)
		}
		if o.outside != "" {
			if err := letIn(dir.data, o.outside); err != nil {
				return nil, err
			}
			args = append(args, "-c", "listen_addresses=*")
		}
		if o.tls != nil {
			args = append(args, "-c", "ssl=on", "-c", "ssl_cert_file="+o.tls.Cert, "-c", "ssl_key_file="+o.tls.Key)
		}
		u := &url.URL{Scheme: "postgres", User: url.User("postgres"), Host: "127.0.0.1:" + port, Path: "/postgres", RawQuery: "sslmode=disable"}
		return launch(&Server{
			// SIGQUIT ends it at once, too, but lets it remove its System V memory; after SIGKILL that stays until a reboot.
			URL: u, dir: dir, options: o, end: syscall.SIGQUIT,
			command: func() *exec.Cmd { return as(cred, exec.Command(daemon, args...)) },
			ready: func() error {
				return answers("pgx", u.String(), "SHOW data_directory", dir.data)
			},
		})
	})
}

// letIn lets users in who come from an address.
func letIn(data, address string) error {
	f, err := os.OpenFile(filepath.Join(data, "pg_hba.conf"), os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "host all outside %s/32 trust\n", address)
	return errors.Join(err, f.Close())
}

// unprivileged is a user that PostgreSQL accepts: nil, which is ourselves, unless we are root.
func unprivileged() (*syscall.Credential, error) {
	if os.Getuid() != 0 {
		return nil, nil //nolint:nilnil // no other user is needed
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

// as runs cmd as another user, from a directory which that user may enter.
func as(cred *syscall.Credential, cmd *exec.Cmd) *exec.Cmd {
	if cred != nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: cred}
		cmd.Dir = "/"
	}
	return cmd
}
