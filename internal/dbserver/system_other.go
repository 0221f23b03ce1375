//go:build !linux

package dbserver

import (
	"errors"
	"os"
)

func mount(string, int64) error {
	return errors.New("dbserver: a server can have a disk of its own on Linux only")
}

func unmount(string) {}

func reserve(*os.File, int64, int64) error { return errors.ErrUnsupported }
