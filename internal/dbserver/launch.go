package dbserver

import (
	"errors"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/bluecone-go/bluecone/internal/process"
)

const startLimit = 5 * time.Minute // a server that fixes its files on a busy disk

// Server is a running server. Its methods must not be called at the same time.
type Server struct {
	// URL names a database of it that exists, as mysql://root@127.0.0.1:port/ or postgres://….
	URL *url.URL

	dir     *dataDir
	options options
	end     syscall.Signal   // ends it at once
	command func() *exec.Cmd // what to start
	ready   func() error

	process *process.Process // nil before it was started
}

// launch starts a server that dies with this process, and waits until it is ready. If that fails its
// files are gone.
func launch(s *Server) (*Server, error) {
	if err := s.options.prepare(s.dir); err != nil {
		s.dir.remove()
		return nil, err
	}
	if err := s.Restart(); err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

// Stop ends the server and removes its files.
func (s *Server) Stop() {
	s.process.Stop()
	s.dir.remove()
}

// Kill ends the server, and all processes it consists of, with SIGKILL. Its files stay.
func (s *Server) Kill() { s.process.Kill() }

// Freeze stops the server in its tracks, with all its processes, until [Server.Thaw].
func (s *Server) Freeze() { s.process.Freeze() }

// Thaw lets a frozen server go on.
func (s *Server) Thaw() { s.process.Thaw() }

// Running reports whether the server has not ended, by itself or because it was killed.
func (s *Server) Running() bool { return s.process.Running() }

// Restart starts the server, on the files and the port it had before, and waits until it answers. PostgreSQL refuses to start as long
// as a process is there of the one that was killed, which on a busy machine takes a while to end.
func (s *Server) Restart() error {
	if s.Running() {
		return errors.New("dbserver: the server runs already")
	}
	for deadline := time.Now().Add(startLimit); ; <-time.After(100 * time.Millisecond) {
		err := s.start()
		if err == nil || !strings.Contains(err.Error(), "is still in use") || time.Now().After(deadline) {
			return err
		}
	}
}

func (s *Server) start() (err error) {
	cmd := s.command()
	cmd.Env = append(os.Environ(), s.options.environment(s.dir)...)
	if s.process, err = process.Start(cmd, s.end, filepath.Join(s.dir.root, "log")); err != nil {
		return err
	}
	return s.process.Await(s.ready, startLimit)
}
