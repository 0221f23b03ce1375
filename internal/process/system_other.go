//go:build !linux

package process

import "syscall"

// dieWithParent does nothing here: after a crash of the tests, end the server by hand.
func dieWithParent(*syscall.SysProcAttr, syscall.Signal) {}

// children is empty here: of PostgreSQL, only the first process is reached.
func children(int) []int { return nil }

// runs is not known here.
func runs(int) bool { return false }

func space(string) int64 { return 0 }
