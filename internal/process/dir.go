package process

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// Dir is a directory for the files of a server.
type Dir struct {
	// Path is where it is.
	Path string

	lock *os.File // locked while this process lives, so that nobody sweeps the directory away
}

// NewDir makes a directory in parent, or in the temporary directory if that is empty, whose name begins with prefix.
func NewDir(parent, prefix string) (*Dir, error) {
	path, err := os.MkdirTemp(parent, prefix)
	if err != nil {
		return nil, err
	}
	// The file "lock" appears already locked.
	pending := filepath.Join(path, "lock.new")
	f, err := os.Create(pending)
	if err == nil {
		err = errors.Join(syscall.Flock(int(f.Fd()), syscall.LOCK_EX), os.Rename(pending, filepath.Join(path, "lock")))
	}
	if err != nil {
		_ = os.RemoveAll(path) // the first error is the one to tell
		return nil, err
	}
	return &Dir{Path: path, lock: f}, nil
}

// Memory is a directory in the machine's memory for the files of tests, with 4 GiB to spare, or empty where there is none.
func Memory() string {
	const dir = "/dev/shm"
	if space(dir) < 4<<30 {
		return ""
	}
	return dir
}

// Remove removes the directory with all that is in it. What cannot be removed is left to [Sweep].
func (d *Dir) Remove() {
	_ = os.RemoveAll(d.Path)
	_ = d.lock.Close()
}

// Sweep removes the directories of [NewDir] that processes left which were killed before they could tidy up. It calls leave before
// it removes one.
func Sweep(parent, prefix string, leave func(path string)) {
	if parent == "" {
		parent = os.TempDir()
	}
	dirs, _ := filepath.Glob(filepath.Join(parent, prefix+"*")) // only a bad pattern fails
	for _, path := range dirs {
		f, err := os.OpenFile(filepath.Join(path, "lock"), os.O_RDWR, 0)
		if err != nil {
			removeIfOld(path) // not locked yet, or somebody else's
			continue
		}
		if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			leave(path)
			_ = os.RemoveAll(path) // next time, then
		}
		_ = f.Close()
	}
}

func removeIfOld(path string) {
	if st, err := os.Stat(path); err == nil && time.Since(st.ModTime()) > time.Hour {
		_ = os.RemoveAll(path) // it fails where the directory is somebody else's
	}
}
