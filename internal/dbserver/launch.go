package dbserver

import (
	"bytes"
	"errors"
	"fmt"
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

// launch starts a server that dies with this process, and waits until it is ready. The function
// it returns ends the server with the given signal and removes its directory.
func launch(cmd *exec.Cmd, dir *dataDir, end syscall.Signal, ready func() error) (func(), error) {
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.WaitDelay = stopLimit // a child of the server could keep our pipe open
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true // Ctrl-C is for the tests, which then end it
	dieWithParent(cmd.SysProcAttr, end)

	started, exited := make(chan error, 1), make(chan error, 1)
	go run(cmd, started, exited)
	if err := <-started; err != nil {
		dir.remove()
		return nil, err
	}
	stop := func() {
		_ = cmd.Process.Signal(end) // it fails if the server is gone already
		select {
		case <-exited: //nolint:errcheck // the server ends as told
		case <-time.After(stopLimit):
			_ = cmd.Process.Kill() // as above
			<-exited               //nolint:errcheck // the server ends as told
		}
		dir.remove()
	}
	deadline := time.Now().Add(startLimit)
	for {
		err := ready()
		if err == nil {
			return stop, nil
		}
		select {
		case e := <-exited:
			dir.remove()
			return nil, fmt.Errorf("%s ended at once: %w: %s", filepath.Base(cmd.Path), errors.Join(e, err), bytes.TrimSpace(log.Bytes()))
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			stop()
			return nil, fmt.Errorf("%s does not answer after %v: %w", filepath.Base(cmd.Path), startLimit, err)
		}
	}
}

// run starts cmd and waits for it on one thread of its own: the kernel sends the parent-death
// signal when the thread that started a process ends, not when the process does.
func run(cmd *exec.Cmd, started, exited chan<- error) {
	runtime.LockOSThread()
	err := cmd.Start()
	started <- err
	if err == nil {
		exited <- cmd.Wait()
	}
}
