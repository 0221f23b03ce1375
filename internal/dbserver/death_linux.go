package dbserver

import "syscall"

// dieWithParent has the kernel send the signal when this process ends, however it ends.
func dieWithParent(attr *syscall.SysProcAttr, signal syscall.Signal) { attr.Pdeathsig = signal }
