//go:build !linux

package dbserver

import "syscall"

// dieWithParent does nothing here: after a crash of the tests, end the server by hand.
func dieWithParent(*syscall.SysProcAttr, syscall.Signal) {}
