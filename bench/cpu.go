package main

import (
	"os"
	"strconv"
	"strings"
	"time"
)

// cpu is the processor time that all server processes have used, from /proc.
func cpu() (server, self time.Duration) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		text, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue
		}
		name, rest, ok := strings.Cut(string(text), ") ")
		if !ok {
			continue
		}
		f := strings.Fields(rest)
		u, _ := strconv.Atoi(f[11])
		s, _ := strconv.Atoi(f[12])
		used := time.Duration(u+s) * 10 * time.Millisecond
		if pid == os.Getpid() {
			self = used
		}
		if strings.Contains(name, "mariadbd") || strings.Contains(name, "postgres") {
			server += used
		}
	}
	return server, self
}
