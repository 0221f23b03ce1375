//go:build !linux

package dbserver

import (
	"errors"
	"syscall"
)

// dieWithParent does nothing here: after a crash of the tests, end the server by hand.
func dieWithParent(*syscall.SysProcAttr, syscall.Signal) {}

func mount(string, int64) error {
	return errors.New("dbserver: a server can have a disk of its own on Linux only")
}

func unmount(string) {}

// children is empty here: of PostgreSQL, only the first process is reached.
func children(int) []int { return nil }
