package dbserver

import (
	"fmt"
	"os"
	"syscall"
)

// mount puts a file system of so many bytes, in memory, onto a directory.
func mount(dir string, bytes int64) error {
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0755", bytes)); err != nil {
		return fmt.Errorf("mount a file system at %s: %w", dir, err)
	}
	return nil
}

// unmount does nothing where nothing is mounted.
func unmount(dir string) { _ = syscall.Unmount(dir, syscall.MNT_DETACH) }

// reserve gives a file so many bytes of its disk, or none.
func reserve(f *os.File, offset, bytes int64) error {
	return syscall.Fallocate(int(f.Fd()), 0, offset, bytes)
}
