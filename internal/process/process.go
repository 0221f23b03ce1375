// Package process runs servers for tests: a process that ends with this one and can be killed and frozen with all that it has
// started, the directory that it works in, and a free port.
package process

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	stopLimit   = 10 * time.Second
	freezeLimit = time.Minute // a thread that waits for a busy disk stops when it has its answer
	logTail     = 16 << 10    // so much of a log is worth showing
)

// Process is a process that was started. Its methods must not be called at the same time.
type Process struct {
	cmd    *exec.Cmd
	end    syscall.Signal
	log    string
	exited chan struct{}
	failed error // why it ended; set before exited is closed
}

// Start starts a command, which the signal ends when this process ends, however it ends. What the command says goes to the end
// of the file log.
func Start(cmd *exec.Cmd, end syscall.Signal, log string) (*Process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close() // the process has its own
	cmd.Stdout, cmd.Stderr = out, out
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true // Ctrl-C is for the tests, which then end it
	dieWithParent(cmd.SysProcAttr, end)
	p := &Process{cmd: cmd, end: end, log: log, exited: make(chan struct{})}
	started := make(chan error, 1)
	go p.run(started)
	return p, <-started
}

// run starts the command and waits for it on one thread of its own: the kernel sends the parent-death signal when the thread
// that started a process ends, not when the process does.
func (p *Process) run(started chan<- error) {
	runtime.LockOSThread()
	err := p.cmd.Start()
	started <- err
	if err == nil {
		p.failed = p.cmd.Wait()
	}
	close(p.exited)
}

// Await waits until ready returns no error. It ends the process and returns an error with its log if that takes longer than
// limit.
func (p *Process) Await(ready func() error, limit time.Duration) error {
	name := filepath.Base(p.cmd.Path)
	for deadline := time.Now().Add(limit); ; {
		err := ready()
		if err == nil {
			return nil
		}
		select {
		case <-p.exited:
			return fmt.Errorf("%s ended at once: %w: %s", name, errors.Join(p.failed, err), p.Log())
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			p.Kill()
			return fmt.Errorf("%s does not answer after %v: %w: %s", name, limit, err, p.Log())
		}
	}
}

// Log is the end of what the process has said.
func (p *Process) Log() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(text[max(0, len(text)-logTail):]))
}

// Running reports whether the process has not ended, by itself or because it was killed.
func (p *Process) Running() bool {
	if p == nil {
		return false
	}
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// Stop ends the process in the way that [Start] was told, and with SIGKILL if that takes long. A frozen one goes on first.
func (p *Process) Stop() {
	if !p.Running() {
		return
	}
	p.Thaw()
	_ = p.cmd.Process.Signal(p.end) // it fails if the process is gone already
	select {
	case <-p.exited:
	case <-time.After(stopLimit):
		p.Kill()
	}
}

// Kill ends the process and all that it has started with SIGKILL.
func (p *Process) Kill() {
	if p.Running() {
		p.signal(syscall.SIGKILL)
		<-p.exited
	}
}

// Freeze stops the process and all that it has started, without ending them, and waits until none of their threads runs: on a busy
// machine they go on for a while after the signal.
func (p *Process) Freeze() {
	if !p.Running() {
		return
	}
	p.signal(syscall.SIGSTOP)
	all := append(children(p.cmd.Process.Pid), p.cmd.Process.Pid)
	for deadline := time.Now().Add(freezeLimit); slices.ContainsFunc(all, runs) && time.Now().Before(deadline); {
		<-time.After(time.Millisecond)
	}
}

// Thaw lets a frozen process go on, with all that it has started.
func (p *Process) Thaw() { p.signal(syscall.SIGCONT) }

// signal sends a signal to the process and all that it has started. It reaches the process first, so that it starts no others
// meanwhile.
func (p *Process) signal(sig syscall.Signal) {
	if !p.Running() {
		return
	}
	others := children(p.cmd.Process.Pid)
	_ = p.cmd.Process.Signal(sig) // it may have ended
	for _, pid := range append(others, children(p.cmd.Process.Pid)...) {
		_ = syscall.Kill(pid, sig) // as above
	}
}
