package dbserver

import (
	"bytes"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
)

const (
	startLimit = time.Minute
	stopLimit  = 10 * time.Second
)

// Server is a running server. Its methods must not be called at the same time.
type Server struct {
	// URL names a database of it that exists, as mysql://root@127.0.0.1:port/ or postgres://….
	URL *url.URL

	dir     *dataDir
	options options
	end     syscall.Signal   // ends it at once
	command func() *exec.Cmd // what to start
	ready   func() error

	cmd    *exec.Cmd
	log    *bytes.Buffer
	exited chan struct{}
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
	if s.Running() {
		s.Thaw()
		_ = s.cmd.Process.Signal(s.end) // it fails if the server is gone already
		select {
		case <-s.exited:
		case <-time.After(stopLimit):
			s.Kill()
		}
	}
	s.dir.remove()
}

// Kill ends the server, and all processes it consists of, with SIGKILL. Its files stay.
func (s *Server) Kill() {
	s.signal(syscall.SIGKILL)
	if s.cmd != nil {
		<-s.exited
	}
}

// Freeze stops the server in its tracks, with all its processes, until [Server.Thaw].
func (s *Server) Freeze() { s.signal(syscall.SIGSTOP) }

// Thaw lets a frozen server go on.
func (s *Server) Thaw() { s.signal(syscall.SIGCONT) }

// Running reports whether the server has not ended, by itself or because it was killed.
func (s *Server) Running() bool {
	if s.cmd == nil {
		return false
	}
	select {
	case <-s.exited:
		return false
	default:
		return true
	}
}

// signal reaches the server's first process first, so that it starts no others meanwhile.
func (s *Server) signal(sig syscall.Signal) {
	if !s.Running() {
		return
	}
	others := children(s.cmd.Process.Pid)
	_ = s.cmd.Process.Signal(sig) // it may have ended
	for _, pid := range append(others, children(s.cmd.Process.Pid)...) {
		_ = syscall.Kill(pid, sig) // as above
	}
}

// Restart starts the server, on the files and the port it had before, and waits until it answers.
func (s *Server) Restart() error {
	if s.Running() {
		return errors.New("dbserver: the server runs already")
	}
	s.log = &bytes.Buffer{}
	cmd := s.command()
	cmd.Stdout, cmd.Stderr = s.log, s.log
	cmd.WaitDelay = stopLimit // a child of the server could keep our pipe open
	cmd.Env = append(os.Environ(), s.options.environment(s.dir)...)
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true // Ctrl-C is for the tests, which then end it
	dieWithParent(cmd.SysProcAttr, s.end)
	started, exited := make(chan error, 1), make(chan struct{})
	var failed error
	go run(cmd, &failed, started, exited)
	if err := <-started; err != nil {
		s.cmd = nil
		return err
	}
	s.cmd, s.exited = cmd, exited
	for deadline := time.Now().Add(startLimit); ; {
		err := s.ready()
		if err == nil {
			return nil
		}
		select {
		case <-exited:
			return fmt.Errorf("%s ended at once: %w: %s", filepath.Base(cmd.Path), errors.Join(failed, err), bytes.TrimSpace(s.log.Bytes()))
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			s.Kill()
			return fmt.Errorf("%s does not answer after %v: %w: %s", filepath.Base(cmd.Path), startLimit, err, bytes.TrimSpace(s.log.Bytes()))
		}
	}
}

// run starts cmd and waits for it on one thread of its own: the kernel sends the parent-death
// signal when the thread that started a process ends, not when the process does. It closes exited
// when the process has ended, with failed set.
func run(cmd *exec.Cmd, failed *error, started chan<- error, exited chan<- struct{}) {
	runtime.LockOSThread()
	err := cmd.Start()
	started <- err
	if err == nil {
		*failed = cmd.Wait()
	}
	close(exited)
}
