package process

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// dieWithParent has the kernel send the signal when this process ends, however it ends.
func dieWithParent(attr *syscall.SysProcAttr, signal syscall.Signal) { attr.Pdeathsig = signal }

// children are the processes that a process has started.
func children(parent int) (pids []int) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat") // only a bad pattern fails
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		if _, of := stateAndParent(string(stat)); of == strconv.Itoa(parent) {
			if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// runs reports whether a thread of a process is neither stopped nor about to end.
func runs(pid int) bool {
	stats, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/[0-9]*/stat") // only a bad pattern fails
	return slices.ContainsFunc(stats, func(path string) bool {
		stat, err := os.ReadFile(path)
		state, _ := stateAndParent(string(stat))
		return err == nil && !strings.Contains("TtZXx", state)
	})
}

// stateAndParent are two fields of a stat file: the name before them, in brackets, may have any text.
func stateAndParent(stat string) (state, parent string) {
	fields := strings.Fields(stat[strings.LastIndex(stat, ")")+1:])
	if len(fields) < 2 {
		return "", ""
	}
	return fields[0], fields[1]
}

// space is how many bytes are free in a file system in memory, or 0 if the directory is not in such a one.
func space(dir string) int64 {
	const tmpfs = 0x01021994
	var st syscall.Statfs_t
	if syscall.Statfs(dir, &st) != nil || st.Type != tmpfs {
		return 0
	}
	return int64(st.Bavail) * st.Bsize
}
