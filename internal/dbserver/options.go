package dbserver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/bluecone-go/bluecone/internal/process"
)

// Option changes a server for a test that mistreats it.
type Option func(*options)

type options struct {
	connections int
	disk        int64
	clock       bool
	tls         *Certificate
	outside     string
	memory      bool
}

// Certificate is the files, in PEM, of a server that speaks TLS.
type Certificate struct{ Cert, Key string }

// TLS lets the server speak TLS to those who ask for it. The key must be a file that the user of the
// server may read: see [Owned].
func TLS(c Certificate) Option { return func(o *options) { o.tls = &c } }

// Owned gives a file to the user as whom the server of a dialect runs, who alone may read it.
func Owned(dialect, path string) error {
	if err := os.Chmod(path, 0o600); err != nil {
		return err
	}
	if dialect != "postgres" {
		return nil
	}
	cred, err := unprivileged()
	if err != nil || cred == nil {
		return err
	}
	return os.Chown(path, int(cred.Uid), int(cred.Gid))
}

// Reachable lets the server listen on every address of this machine, and lets the user "outside" in, without a password, who comes from
// one of these addresses. On servers of MySQL's kind the test makes the user.
func Reachable(from string) Option { return func(o *options) { o.outside = from } }

// Connections is how many connections the server takes. Default: 500.
func Connections(n int) Option { return func(o *options) { o.connections = n } }

// OwnDisk puts the server's files on a file system of their own, of so many bytes in memory, for
// [Server.FillDisk]. See [CanMount].
func OwnDisk(bytes int64) Option { return func(o *options) { o.disk = bytes } }

// OwnClock gives the server a clock for [Server.SetClock]. See [CanFakeTime].
func OwnClock() Option { return func(o *options) { o.clock = true } }

// InMemory keeps the server's files in [process.Memory], if there is any. What the server has written outlives its process as on a
// disk, not the machine; a flush takes no time.
func InMemory() Option { return func(o *options) { o.memory = true } }

// parent is the directory in which the server's own is made: the temporary one, if it is empty.
func (o options) parent() string {
	if o.memory {
		return process.Memory()
	}
	return ""
}

const (
	diskName  = "disk"
	clockName = "clock"
)

// CanMount reports whether [OwnDisk] works here: on Linux, for root, where mounting is allowed.
func CanMount() bool {
	dir, err := os.MkdirTemp("", "bluecone-mount-")
	if err != nil {
		return false
	}
	defer os.Remove(dir)
	if mount(dir, 1<<20) != nil {
		return false
	}
	unmount(dir)
	return true
}

// CanFakeTime reports whether [OwnClock] works here: where libfaketime is installed.
func CanFakeTime() bool { return faketime() != "" }

func faketime() string {
	found, _ := filepath.Glob("/usr/lib/*/faketime/libfaketimeMT.so.1") // only a bad pattern fails
	if len(found) == 0 {
		return ""
	}
	return found[0]
}

// prepare makes what the options need before the server starts.
func (o options) prepare(dir *dataDir) error {
	if !o.clock {
		return nil
	}
	if !CanFakeTime() {
		return errors.New("dbserver: libfaketime is not installed")
	}
	if err := os.Chmod(dir.root, 0o711); err != nil { //nolint:gosec // the server's user must read the clock
		return err
	}
	return setClock(dir, 0)
}

func (o options) environment(dir *dataDir) []string {
	if !o.clock {
		return nil
	}
	return []string{
		"LD_PRELOAD=" + faketime(), "FAKETIME_TIMESTAMP_FILE=" + filepath.Join(dir.root, clockName),
		"FAKETIME_CACHE_DURATION=1", "DONT_FAKE_MONOTONIC=1", // a machine's monotonic clock never jumps
	}
}

// SetClock makes the server's clock go so much ahead of the machine's, or behind it. It takes up to a second.
func (s *Server) SetClock(ahead time.Duration) error { return setClock(s.dir, ahead) }

func setClock(dir *dataDir, ahead time.Duration) error {
	path := filepath.Join(dir.root, clockName)
	text := fmt.Appendf(nil, "%+.0fs", ahead.Seconds())
	if err := os.WriteFile(path+".new", text, 0o644); err != nil { //nolint:gosec // the server's user reads it
		return err
	}
	return os.Rename(path+".new", path)
}

// FillDisk leaves the server, which must have been started with [OwnDisk], not a byte.
func (s *Server) FillDisk() error {
	if s.options.disk == 0 {
		return errors.New("dbserver: the server has no disk of its own")
	}
	f, err := os.Create(s.ballast())
	if err != nil {
		return err
	}
	offset := int64(0)
	for size := s.options.disk; size > 0 && err == nil; {
		switch err = reserve(f, offset, size); {
		case err == nil:
			offset += size
		case errors.Is(err, syscall.ENOSPC):
			size, err = size/2, nil
		case errors.Is(err, syscall.EINTR):
			err = nil
		}
	}
	return errors.Join(err, f.Close())
}

// FreeDisk gives the space back.
func (s *Server) FreeDisk() error { return os.Remove(s.ballast()) }

func (s *Server) ballast() string { return filepath.Join(s.dir.root, diskName, "ballast") }
