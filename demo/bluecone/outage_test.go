package main

import (
	"bufio"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/dbserver"
	"github.com/bluecone-go/bluecone/internal/testdb"
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
	for _, dialect := range testdb.Servers() {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			s := newSoak(newWorld(t, dialect), 1)
			stop := make(chan struct{})
			wait := s.serve(stop, customers(), think)
			halt := sync.OnceFunc(func() { close(stop); wait() })
			t.Cleanup(halt)
			s.eventually(func() bool {
				n, err := s.number("SELECT COUNT(*) FROM bc_event_consume_log")
				return err == nil && n > 50
			}, "deliveries are under way")
			s.outage("killed", func() error { s.server.Kill(); return nil }, s.answers)
			s.outage("frozen", func() error { s.server.Freeze(); pause(freeze); return nil }, func() error { s.server.Thaw(); return s.answers() })
			if dbserver.CanMount() {
				s.outage(fullDisk, s.server.FillDisk, func() error {
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

// outage begins one, ends it when every instance has said so, and waits until all say that it is over.
func (s *soak) outage(what string, begin, end func() error) {
	s.t.Helper()
	before := s.logged()
	require.NoError(s.t, begin(), what)
	if what == fullDisk { // who has nothing to write does not meet it: the customers' requests fail before they save an event
		s.atMost(time.Minute, s.all(saysAway))
	} else {
		s.eventually(s.all(saysAway), what+": every instance says that the database is away")
	}
	during := s.logged()
	require.NoError(s.t, end(), what)
	took, err := s.progress(time.Now())
	require.NoError(s.t, err, what)
	s.eventually(s.all(saysBack), what+": every instance says that it is back")
	s.t.Logf("%s: deliveries go on %v after the database is back", what, took.Round(time.Millisecond))
	for i, n := range s.nodes {
		log := n.stderr.String()
		s.t.Logf("%s: instance %d says %v", what, i, loudLines(log[before[i]:]))
		// a full disk may seem to be over once
		require.LessOrEqual(s.t, loudLines(log[before[i]:during[i]])[saysAway], 2, "%s: instance %d", what, i)
		require.Len(s.t, slices.Compact(tidings(log)), len(tidings(log)), "%s: instance %d says the same twice", what, i)
	}
}

const fullDisk = "out of disk"

// atMost waits until ok, or as long.
func (s *soak) atMost(limit time.Duration, ok func() bool) {
	for end := time.Now().Add(limit); !ok() && time.Now().Before(end); {
		pause(5 * beat)
	}
}

// logged is how much each instance has logged.
func (s *soak) logged() (sizes []int) {
	for _, n := range s.nodes {
		sizes = append(sizes, len(n.stderr.String()))
	}
	return sizes
}

// all reports whether what every instance has told last of the database is msg.
func (s *soak) all(msg string) func() bool {
	return func() bool {
		for _, n := range s.nodes {
			if told := tidings(n.stderr.String()); len(told) == 0 || told[len(told)-1] != msg {
				return false
			}
		}
		return true
	}
}

// tidings are what a log tells of the database, in order: that it is away, that it is back. A slow
// machine may add an outage of its own, but each is told in two lines.
func tidings(log string) (told []string) {
	for line := range strings.Lines(log) {
		for _, msg := range []string{saysAway, saysBack} {
			if strings.Contains(line, msg) {
				told = append(told, msg)
			}
		}
	}
	return told
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
		if json.Unmarshal(s.Bytes(), &line) == nil && line.Msg != "request failed" &&
			(line.Level == "WARN" || line.Level == "ERROR" || line.Msg == saysBack) {
			counts[line.Msg]++
		}
	}
	return counts
}
