// Command teeth breaks the engine on purpose, one promise at a time, and shows which test notices.
//
//	make test-teeth
//	go run ./internal/teeth [-only NAME] [-write docs/measurements/teeth.md]
//
// A sabotage replaces a few lines of one file, in an overlay: the tree is never touched. It is caught
// if at least one of the named tests fails; one that does not build, or whose lines are no longer
// there, is a mistake in this list.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/bluecone-go/bluecone/internal/report"
)

func main() {
	only := flag.String("only", "", "only sabotages whose name contains this")
	write := flag.String("write", "", "write the table into this Markdown file, between its marks")
	flag.Parse()
	if err := run(os.Stdout, *only, *write); err != nil {
		fmt.Fprintln(os.Stderr, "teeth:", err)
		os.Exit(1)
	}
}

type result struct {
	sabotage
	caught []string // the tests that failed
}

func run(out io.Writer, only, write string) error {
	var results []result
	var missed []string
	for _, s := range sabotages() {
		if !strings.Contains(s.name, only) {
			continue
		}
		began := time.Now()
		caught, err := s.try()
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		verdict := "caught by " + strings.Join(caught, ", ")
		if len(caught) == 0 {
			verdict = "NOT CAUGHT"
			missed = append(missed, s.name)
		}
		_, _ = fmt.Fprintf(out, "%-75s %s (%v)\n", s.name, verdict, time.Since(began).Round(time.Second))
		results = append(results, result{s, caught})
	}
	if len(results) == 0 {
		return fmt.Errorf("no sabotage has %q in its name", only)
	}
	if write != "" {
		if err := report.Write(write, "teeth", table(results).String()); err != nil {
			return err
		}
	}
	if len(missed) > 0 {
		return fmt.Errorf("%d of %d sabotages were not caught: %s", len(missed), len(results), strings.Join(missed, "; "))
	}
	_, err := fmt.Fprintf(out, "all %d sabotages were caught\n", len(results))
	return err
}

// try runs the tests on the sabotaged code and returns those that failed.
func (s sabotage) try() ([]string, error) {
	dir, err := os.MkdirTemp("", "teeth")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	overlay, err := s.overlay(dir)
	if err != nil {
		return nil, err
	}
	args := append([]string{"test", "-count=1", "-failfast", "-overlay", overlay, "-run", s.tests}, strings.Fields(s.packages)...)
	cmd := exec.Command("go", args...) //nolint:noctx // it ends by itself
	cmd.Env = append([]string{"BLUECONE_TEST_PATIENCE=2m"}, os.Environ()...)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case err != nil && !errors.As(err, &exit):
		return nil, err
	case strings.Contains(string(out), "[build failed]") || strings.Contains(string(out), "[setup failed]"):
		return nil, fmt.Errorf("the sabotaged code does not build:\n%s", out)
	case strings.Contains(string(out), "no tests to run") && !strings.Contains(string(out), "--- FAIL"):
		return nil, fmt.Errorf("no test matches %q", s.tests)
	}
	var caught []string
	for _, m := range failed.FindAllStringSubmatch(string(out), -1) {
		if !slices.Contains(caught, m[1]) {
			caught = append(caught, m[1])
		}
	}
	if err != nil && len(caught) == 0 {
		return nil, fmt.Errorf("the tests ended without a verdict:\n%s", out)
	}
	return caught, nil
}

// failed finds the tests that did, also those that a condition outlived which fails later.
var failed = regexp.MustCompile(`(?m)^(?:--- FAIL: |panic: Fail in goroutine after )(\w+)`)

// overlay writes the sabotaged file, and the overlay that puts it into its place.
func (s sabotage) overlay(dir string) (string, error) {
	replace := make(map[string]string)
	for _, e := range append([]edit{{s.file, s.old, s.new}}, s.also...) {
		original, err := filepath.Abs(e.file)
		if err != nil {
			return "", err
		}
		from := original
		if changed, ok := replace[original]; ok {
			from = changed
		}
		if replace[original], err = e.apply(from, dir); err != nil {
			return "", err
		}
	}
	spec, err := json.Marshal(map[string]map[string]string{"Replace": replace})
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, spec, 0o600)
}

// apply writes the file, as it stands in from, changed into dir.
func (e edit) apply(from, dir string) (string, error) {
	text, err := os.ReadFile(from)
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(text), e.old); n != 1 {
		return "", fmt.Errorf("%s has the lines to replace %d times, not once", e.file, n)
	}
	bad := filepath.Join(dir, filepath.Base(e.file))
	return bad, os.WriteFile(bad, []byte(strings.Replace(string(text), e.old, e.new, 1)), 0o600)
}

// table shows which test caught which sabotage.
func table(results []result) report.Table {
	t := report.Table{Head: []string{"sabotage", "where", "caught by"}}
	for _, r := range results {
		caught := "**nobody**"
		if len(r.caught) > 0 {
			caught = "`" + strings.Join(r.caught, "`, `") + "`"
		}
		t.Rows = append(t.Rows, []string{r.name, r.file, caught})
	}
	return t
}
