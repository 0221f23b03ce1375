// Command teeth breaks the engine on purpose, one promise at a time, and shows which test notices.
//
//	make test-teeth
//	go run ./internal/teeth [-only PATTERN] [-new] [-write docs/measurements/teeth.md]
//	go run ./internal/teeth -build
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
)

func main() {
	only := flag.String("only", "", "only sabotages whose name matches this regular expression")
	write := flag.String("write", "", "write the results into the table of this Markdown file; what is not run keeps its row")
	isNew := flag.Bool("new", false, "only sabotages that have no row yet in the table of -write")
	justBuild := flag.Bool("build", false, "run no tests: tell which sabotages do not fit the code or do not build")
	flag.Parse()
	chosen, err := choose(*only)
	switch {
	case err != nil:
	case *justBuild:
		err = build(os.Stdout, chosen)
	default:
		err = run(os.Stdout, chosen, *write, *isNew)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "teeth:", err)
		os.Exit(1)
	}
}

func choose(only string) (chosen []sabotage, err error) {
	name, err := regexp.Compile(only)
	if err != nil {
		return nil, err
	}
	for _, s := range sabotages() {
		if name.MatchString(s.name) {
			chosen = append(chosen, s)
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("no sabotage has a name that matches %q", only)
	}
	return chosen, nil
}

// run tries the sabotages, and writes each result into the table, if there is one, at once.
func run(out io.Writer, chosen []sabotage, write string, isNew bool) error {
	t, err := readTable(write)
	if err != nil {
		return err
	}
	tried := 0
	var missed []string
	for _, s := range chosen {
		if isNew && t.has(s) {
			continue
		}
		tried++
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
		if err := t.add(s, caught); err != nil {
			return err
		}
	}
	if len(missed) > 0 {
		return fmt.Errorf("%d of %d sabotages were not caught: %s", len(missed), tried, strings.Join(missed, "; "))
	}
	_, err = fmt.Fprintf(out, "all %d sabotages were caught\n", tried)
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
	cmd.Env = append([]string{"BLUECONE_TEST_PATIENCE=2m", "BLUECONE_SIM_SEEDS=2000"}, os.Environ()...)
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

// overlay writes the sabotaged files, and the overlay that puts them into their places.
func (s sabotage) overlay(dir string) (string, error) {
	replace, err := s.change(dir)
	if err != nil {
		return "", err
	}
	spec, err := json.Marshal(map[string]map[string]string{"Replace": replace})
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, spec, 0o600)
}

// change writes the sabotaged files into dir, and returns which one replaces which.
func (s sabotage) change(dir string) (map[string]string, error) {
	replace := make(map[string]string)
	for _, e := range s.edits() {
		original, err := filepath.Abs(e.file)
		if err != nil {
			return nil, err
		}
		from := original
		if changed, ok := replace[original]; ok {
			from = changed
		}
		if replace[original], err = e.apply(from, dir); err != nil {
			return nil, err
		}
	}
	return replace, nil
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
	bad := filepath.Join(dir, strings.ReplaceAll(e.file, "/", "-"))
	return bad, os.WriteFile(bad, []byte(strings.Replace(string(text), e.old, e.new, 1)), 0o600)
}
