package main

import (
	"context"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/uptrace/bun"
)

// statements sums up time per shape of statement, if BENCH_STATEMENTS is set.
type statements struct {
	mu    sync.Mutex
	time  map[string]time.Duration
	count map[string]int
}

func (s *statements) BeforeQuery(ctx context.Context, _ *bun.QueryEvent) context.Context { return ctx }

func (s *statements) AfterQuery(_ context.Context, ev *bun.QueryEvent) {
	q := ev.Query
	if i := strings.Index(q, "VALUES"); i > 0 {
		q = q[:i]
	}
	q = strings.Join(strings.Fields(q), " ")
	if strings.HasPrefix(q, "UPDATE (SELECT") {
		if i := strings.Index(q, "STRAIGHT"); i > 0 {
			q = "UPDATE " + q[i:]
		}
	}
	if i := strings.Index(q, "(SELECT 1"); i > 0 {
		if j := strings.LastIndex(q, ") AS t"); j > i {
			q = q[:i] + q[j:]
		}
	}
	q = q[:min(len(q), 110)]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.time[q] += time.Since(ev.StartTime)
	s.count[q]++
}

func watchStatements(db *bun.DB) func() {
	if os.Getenv("BENCH_STATEMENTS") == "" {
		return func() {}
	}
	s := &statements{time: map[string]time.Duration{}, count: map[string]int{}}
	db.AddQueryHook(s)
	return func() {
		for q, d := range s.time {
			if d > 200*time.Millisecond {
				progress("%8.2fs %7d  %s", d.Seconds(), s.count[q], q)
			}
		}
	}
}

func envInt(name string, def int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return def
}

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
