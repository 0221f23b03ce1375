package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/report"
	"github.com/bluecone-go/bluecone/invariant"
)

// soakReport is what came of one soak.
type soakReport struct {
	dialect    string
	seed       uint64
	length     time.Duration
	customers  int
	events     float64
	deliveries float64
	skipped    float64
	unknown    int64
	faults     map[string]*faultReport
	violations []string
}

// faultReport is what came of all faults of a kind.
type faultReport struct {
	times, lost, doubled, reordered, unknown int64
	recovered                                time.Duration
}

func (r *soakReport) violate(what string) {
	r.violations = append(r.violations, what)
}

// note takes down what came of a fault.
func (r *soakReport) note(dialect, kind string, recovered time.Duration, unknown int64, found []invariant.Violation) {
	if r.faults == nil {
		r.faults = make(map[string]*faultReport)
	}
	key := kind + " | " + serverNames[dialect]
	f := r.faults[key]
	if f == nil {
		f = &faultReport{}
		r.faults[key] = f
	}
	f.times++
	f.unknown += unknown
	f.recovered = max(f.recovered, recovered)
	for _, v := range found {
		r.violate(kind + ": " + v.String())
		switch v.Invariant[:strings.Index(v.Invariant, " ")] {
		case "I5", "I6":
			f.doubled++
		case "I7":
			f.reordered++
		default:
			f.lost++
		}
	}
}

var serverNames = map[string]string{"mysql": "MariaDB", "mysql9": "MySQL 9", "postgres": "PostgreSQL"}

func (r *soakReport) longest() (d time.Duration, kind string) {
	for k, f := range r.faults {
		if f.recovered > d {
			d, kind = f.recovered, k
		}
	}
	kind, _, _ = strings.Cut(kind, " | ")
	return d, kind
}

func (r *soakReport) count() (n int64) {
	for _, f := range r.faults {
		n += f.times
	}
	return n
}

var (
	soakHead = []string{
		"database", "seed", "took", "customers", "events", "deliveries", "faults", "duplicates skipped",
		"unknown outcomes", "longest recovery", "violations",
	}
	faultHead = []string{"fault", "database", "times", "lost", "doubled", "reordered", "unknown outcomes", "longest recovery"}
)

func (r *soakReport) row() []string {
	longest, kind := r.longest()
	return cells(serverNames[r.dialect], r.seed, r.length, r.customers, r.events, r.deliveries, r.count(), r.skipped, r.unknown,
		fmt.Sprintf("%v after %s", longest.Round(100*time.Millisecond), kind), len(r.violations))
}

func cells(values ...any) []string {
	out := make([]string, len(values))
	for i, v := range values {
		out[i] = fmt.Sprint(v)
	}
	return out
}

// matrix is the rows of faults and what came of them, by kind.
func matrix(faults map[string]*faultReport) (rows [][]string) {
	for _, key := range slices.Sorted(maps.Keys(faults)) {
		f := faults[key]
		kind, server, _ := strings.Cut(key, " | ")
		rows = append(rows, cells(kind, server, f.times, f.lost, f.doubled, f.reordered, f.unknown, f.recovered.Round(100*time.Millisecond)))
	}
	return rows
}

// print writes the tables for people.
func (r *soakReport) print(out io.Writer) {
	// a test's log
	_, _ = fmt.Fprintf(out, "\n%s\n%s\n", report.Table{Head: soakHead, Rows: [][]string{r.row()}},
		report.Table{Head: faultHead, Rows: matrix(r.faults)})
	for _, v := range r.violations {
		_, _ = fmt.Fprintln(out, "VIOLATION", v)
	}
}

// publish adds the run to the tables of a document, between their marks. Other runs may do so too.
func (r *soakReport) publish(path string) error {
	if path == "" {
		return nil
	}
	f, err := os.Open(filepath.Clean(path))
	if err != nil {
		return err
	}
	defer f.Close()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return err
	}
	text, err := io.ReadAll(f)
	if err != nil {
		return err
	}
	runs := report.Table{Head: soakHead, Rows: append(rows(string(text), "soak"), r.row())}
	faults := report.Table{Head: faultHead, Rows: matrix(merge(rows(string(text), "faults"), r.faults))}
	return errors.Join(report.Write(path, "soak", runs.String()), report.Write(path, "faults", faults.String()))
}

// rows are those of the table between the marks of a document.
func rows(doc, name string) (out [][]string) {
	_, rest, _ := strings.Cut(doc, "<!-- "+name+":")
	table, _, _ := strings.Cut(rest, "<!-- /"+name+" -->")
	for line := range strings.Lines(table) {
		if !strings.HasPrefix(line, "| ") {
			continue
		}
		var row []string
		for c := range strings.SplitSeq(strings.Trim(strings.TrimSpace(line), "|"), "|") {
			row = append(row, strings.TrimSpace(c))
		}
		out = append(out, row)
	}
	return out[min(len(out), 1):] // but the head
}

// merge adds what earlier runs have written.
func merge(rows [][]string, mine map[string]*faultReport) map[string]*faultReport {
	all := make(map[string]*faultReport)
	for _, row := range rows {
		number := func(i int) int64 { n, _ := strconv.ParseInt(row[i], 10, 64); return n } // we wrote it
		took, _ := time.ParseDuration(row[7])                                              // as above
		all[row[0]+" | "+row[1]] = &faultReport{number(2), number(3), number(4), number(5), number(6), took}
	}
	for key, f := range mine {
		was := all[key]
		if was == nil {
			was = &faultReport{}
		}
		all[key] = &faultReport{
			was.times + f.times, was.lost + f.lost, was.doubled + f.doubled, was.reordered + f.reordered,
			was.unknown + f.unknown, max(was.recovered, f.recovered),
		}
	}
	return all
}

func TestReportsAddUp(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "doc.md")
	require.NoError(t, os.WriteFile(path, []byte("a\n<!-- soak: by make soak --><!-- /soak -->b\n<!-- faults: by make soak --><!-- "+
		"/faults -->c\n"), 0o600))
	for i := range 2 {
		r := &soakReport{dialect: "mysql", seed: uint64(i), length: time.Minute}
		r.note("mysql", "delay", time.Duration(i+1)*time.Second, 3, nil)
		require.NoError(t, r.publish(path))
	}
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Contains(t, string(text), "| delay | MariaDB  | 2     | 0    | 0       | 0         | 6                | 2s               |")
	require.Equal(t, 2, strings.Count(string(text), "1s after delay")+strings.Count(string(text), "2s after delay"))
	require.True(t, strings.HasPrefix(string(text), "a\n") && strings.HasSuffix(string(text), "c\n"))
}
