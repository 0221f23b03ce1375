//go:build !linux

package testdb

import "syscall"

// dieWithParent does nothing here: after a crash of the tests, end the server by hand.
func dieWithParent(*syscall.SysProcAttr, syscall.Signal) {}
