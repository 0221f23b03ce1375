package dbserver

import (
	"fmt"
	"syscall"
)

// memory is where Linux has a file system in memory.
const memory = "/dev/shm"

// space is how many bytes are free in such a file system, or 0 where it is none.
func space(dir string) int64 {
	const tmpfs = 0x01021994
	var st syscall.Statfs_t
	if syscall.Statfs(dir, &st) != nil || st.Type != tmpfs {
		return 0
	}
	return int64(st.Bavail) * st.Bsize
}

// mount puts a file system of so many bytes, in memory, onto a directory.
func mount(dir string, bytes int64) error {
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0755", bytes)); err != nil {
		return fmt.Errorf("mount a file system at %s: %w", dir, err)
	}
	return nil
}

// unmount does nothing where nothing is mounted.
func unmount(dir string) { _ = syscall.Unmount(dir, syscall.MNT_DETACH) }
