//go:build !linux

package dbserver

import "errors"

const memory = ""

func space(string) int64 { return 0 }

func mount(string, int64) error {
	return errors.New("dbserver: a server can have a disk of its own on Linux only")
}

func unmount(string) {}
