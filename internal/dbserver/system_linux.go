package dbserver

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// dieWithParent has the kernel send the signal when this process ends, however it ends.
func dieWithParent(attr *syscall.SysProcAttr, signal syscall.Signal) { attr.Pdeathsig = signal }

// mount puts a file system of so many bytes, in memory, onto a directory.
func mount(dir string, bytes int64) error {
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0755", bytes)); err != nil {
		return fmt.Errorf("mount a file system at %s: %w", dir, err)
	}
	return nil
}

// unmount does nothing where nothing is mounted.
func unmount(dir string) { _ = syscall.Unmount(dir, syscall.MNT_DETACH) }

// children are the processes that a process has started.
func children(parent int) (pids []int) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat") // only a bad pattern fails
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		_, rest, _ := strings.Cut(string(stat), ") ")
		if fields := strings.Fields(rest); len(fields) > 1 && fields[1] == strconv.Itoa(parent) {
			if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}
