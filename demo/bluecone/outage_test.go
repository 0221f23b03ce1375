package main

import (
	"bufio"
	"encoding/json"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/dbserver"
)

const (
	saysAway = "the database does not answer as it should; the publisher keeps trying"
	saysBack = "the database answers again"
)

// A database is killed and started again, frozen for longer than a lease (or BLUECONE_TEST_FREEZE), and
// left without space and given some. The instances go on by themselves, and each says in one line that
// it is away and in one that it is back.
func TestInstancesOutliveTheirDatabase(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it takes half a minute")
	}
	freeze := 7 * time.Second
	if text := os.Getenv("BLUECONE_TEST_FREEZE"); text != "" {
		var err error
		freeze, err = time.ParseDuration(text)
		require.NoError(t, err, "BLUECONE_TEST_FREEZE must be a duration such as 1m")
	}
	for _, dialect := range []string{"mysql", "postgres"} {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			s := newSoak(t, dialect, 1)
			stop := make(chan struct{})
			wait := s.serve(stop)
			halt := sync.OnceFunc(func() { close(stop); wait() })
			t.Cleanup(halt)
			s.eventually(func() bool {
				n, err := s.number("SELECT COUNT(*) FROM bc_event_consume_log")
				return err == nil && n > 50
			}, "deliveries are under way")
			outage := func(what string, begin func() error, end func() error) {
				before := s.logged()
				require.NoError(t, begin())
				s.eachSays(what, before, saysAway)
				require.NoError(t, end())
				took, err := s.progress(time.Now())
				require.NoError(t, err, what)
				s.eachSays(what, before, saysBack)
				t.Logf("%s: deliveries go on %v after the database is back", what, took.Round(time.Millisecond))
				for i, n := range s.nodes {
					loud := loudLines(n.stderr.String()[before[i]:])
					t.Logf("%s: instance %d says %v", what, i, loud)
					require.Equal(t, 1, loud[saysAway], what)
					require.Equal(t, 1, loud[saysBack], what)
				}
			}
			outage("killed", func() error { s.server.Kill(); return nil }, s.answers)
			outage("frozen", func() error { s.server.Freeze(); pause(freeze); return nil }, func() error { s.server.Thaw(); return s.answers() })
			if dbserver.CanMount() {
				outage("out of disk", s.server.FillDisk, func() error {
					if err := s.server.FreeDisk(); err != nil {
						return err
					}
					return s.answers()
				})
			}
			halt()
			s.judge()
			require.Empty(t, s.report.violations)
		})
	}
}

// logged is how much each instance has logged.
func (s *soak) logged() (sizes []int) {
	for _, n := range s.nodes {
		sizes = append(sizes, len(n.stderr.String()))
	}
	return sizes
}

// eachSays waits until every instance has said it.
func (s *soak) eachSays(what string, since []int, msg string) {
	s.t.Helper()
	s.eventually(func() bool {
		for i, n := range s.nodes {
			if len(logLines(n.stderr.String()[since[i]:], msg)) == 0 {
				return false
			}
		}
		return true
	}, what+": "+msg)
}

func (s *soak) eventually(ok func() bool, what string) {
	s.t.Helper()
	require.Eventually(s.t, ok, patient, 5*beat, what)
}

// loudLines counts the lines of a log that tell of trouble, and of its end, by what they say. Requests
// that were refused have a line each.
func loudLines(log string) map[string]int {
	counts := make(map[string]int)
	for s := bufio.NewScanner(strings.NewReader(log)); s.Scan(); {
		var line struct{ Level, Msg string }
		if json.Unmarshal(s.Bytes(), &line) == nil && line.Msg != "request failed" && (line.Level == "WARN" || line.Level == "ERROR" || line.Msg == saysBack) {
			counts[line.Msg]++
		}
	}
	return counts
}
