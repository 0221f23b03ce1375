package dbserver

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/bluecone-go/bluecone/internal/process"
)

// prefix begins the name of every directory that this package makes in the temporary directory.
const prefix = "bluecone-dbserver-"

// dataDir is where a private server keeps its files: root/data, or root/disk/data if that is a file
// system of its own.
type dataDir struct {
	root, data string
	dir        *process.Dir
}

func (d *dataDir) remove() {
	unmount(filepath.Join(d.root, diskName))
	d.dir.Remove()
}

// newDataDir makes an initialised data directory. Initialising takes seconds, copying a fraction
// of one, so the result is kept in the user's cache, one template per server version.
func newDataDir(kind, daemon, variant string, owner *syscall.Credential, o options, initialise func(data string) error) (*dataDir, error) {
	dir, err := tempDir(o.parent(), kind)
	if err != nil {
		return nil, err
	}
	if o.disk > 0 {
		disk := filepath.Join(dir.root, diskName)
		dir.data = filepath.Join(disk, "data")
		if err := errors.Join(os.Mkdir(disk, 0o755), mount(disk, o.disk)); err != nil { //nolint:gosec // the server's user must get in
			dir.remove()
			return nil, err
		}
	}
	if err := fill(dir, kind, daemon, variant, owner, initialise); err != nil {
		dir.remove()
		return nil, fmt.Errorf("prepare a data directory for %s: %w", kind, err)
	}
	return dir, nil
}

func fill(dir *dataDir, kind, daemon, variant string, owner *syscall.Credential, initialise func(data string) error) error {
	fresh := func() error {
		if err := os.Mkdir(dir.data, 0o700); err != nil {
			return err
		}
		if owner != nil {
			//nolint:gosec // the server's user must get in
			err := errors.Join(os.Chmod(dir.root, 0o711), os.Chown(dir.data, int(owner.Uid), int(owner.Gid)))
			if err != nil {
				return err
			}
		}
		return initialise(dir.data)
	}
	template, err := templatePath(kind, daemon, variant, owner)
	if err != nil {
		return fresh() // no cache directory, no cache
	}
	unlock, err := lockFile(template + ".lock")
	if err != nil {
		return fresh()
	}
	defer unlock()
	if _, err := os.Stat(template); err == nil {
		if owner != nil {
			if err := os.Chmod(dir.root, 0o711); err != nil { //nolint:gosec // the server's user must get in
				return err
			}
		}
		return copyTree(template, dir.data)
	}
	if err := fresh(); err != nil {
		return err
	}
	return keep(dir.data, template)
}

// keep stores a copy of a data directory as a template, whole or not at all.
func keep(data, template string) error {
	half := template + ".new"
	if err := os.RemoveAll(half); err != nil {
		return err
	}
	if err := copyTree(data, half); err != nil {
		return err
	}
	return os.Rename(half, template)
}

// templatePath is a name that changes with the server's version, its user and the way we initialise it.
func templatePath(kind, daemon, variant string, owner *syscall.Credential) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	version, err := exec.CommandContext(context.Background(), daemon, "--version").Output()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "bluecone-dbserver")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	const recipe = 1 // raise it when the options of the initialisation change
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %s %v %s", recipe, version, owner, variant))
	return filepath.Join(dir, kind+"-"+hex.EncodeToString(sum[:6])), nil
}

// copyTree copies a directory with owners, modes and holes.
func copyTree(from, to string) error { return output(exec.Command("cp", "-a", from, to)) }

func lockFile(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil // closing unlocks
}

// tempDir makes a directory for a server, after it has swept away what killed test processes left.
func tempDir(parent, kind string) (*dataDir, error) {
	process.Sweep(parent, prefix, func(root string) { unmount(filepath.Join(root, diskName)) })
	dir, err := process.NewDir(parent, prefix+kind+"-")
	if err != nil {
		return nil, err
	}
	return &dataDir{root: dir.Path, data: filepath.Join(dir.Path, "data"), dir: dir}, nil
}

// output runs a command and puts what it said into its error.
func output(cmd *exec.Cmd) error {
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", filepath.Base(cmd.Path), err, strings.TrimSpace(string(out)))
	}
	return nil
}
