package upgrade_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/internal/upgrade/program"
)

// before is the release before: the last commit with the tables of migration 5.
const before = "1852d9b"

// TestMain lets the test binary be an instance of this release.
func TestMain(m *testing.M) {
	if os.Getenv(program.EnvDSN) == "" {
		testdb.Main(m)
		return
	}
	if err := program.Main(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// oldProgram is the program, built from the tree of the release before. Without the history there is none: the test then
// is skipped, or fails if BLUECONE_TEST_REQUIRE has "history".
func oldProgram(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := buildOld(dir); err != nil {
		testdb.Unavailable(t, "history", err)
	}
	return filepath.Join(dir, "old")
}

func buildOld(dir string) error {
	root, err := exec.CommandContext(context.Background(), "git", "rev-parse", "--show-toplevel").Output()
	if err != nil {
		return fmt.Errorf("this tree is not a git repository, so the release before cannot be built: %w", err)
	}
	top, tree := strings.TrimSpace(string(root)), filepath.Join(dir, "tree")
	main, pkg := filepath.Join(tree, "internal", "upgrade", "old"), filepath.Join(tree, "internal", "upgrade", "program")
	if err := errors.Join(os.MkdirAll(main, 0o700), os.MkdirAll(pkg, 0o700)); err != nil {
		return err
	}
	archive := filepath.Join(dir, "tree.tar")
	for _, cmd := range []*exec.Cmd{
		exec.CommandContext(context.Background(), "git", "-C", top, "archive", "-o", archive, before),
		exec.CommandContext(context.Background(), "tar", "-x", "-f", archive, "-C", tree),
		exec.CommandContext(context.Background(), "cp", "-r", filepath.Join(top, "internal", "upgrade", "program"), filepath.Dir(pkg)),
	} {
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("take the release before, commit %s, out of the history: %w: %s", before, err, out)
		}
	}
	source := strings.ReplaceAll(`package main

import ("fmt"; "os"; "MODULE/internal/upgrade/program")

func main() {
	if err := program.Main(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
`, "MODULE", "github.com/bluecone-go/bluecone")
	if err := os.WriteFile(filepath.Join(main, "main.go"), []byte(source), 0o600); err != nil {
		return err
	}
	build := exec.CommandContext(context.Background(), "go", "build", "-tags", "oldrelease", "-o", filepath.Join(dir, "old"),
		"./internal/upgrade/old")
	flags := os.Getenv("GOFLAGS") + " -trimpath" // what the tests are compiled with: what it imports is compiled already
	build.Dir, build.Env = tree, append(os.Environ(), "GOWORK=off", "GOFLAGS="+flags)
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the release before: %w: %s", err, out)
	}
	return nil
}

// process is an instance that runs.
type process struct {
	t       *testing.T
	name    string
	cmd     *exec.Cmd
	in      io.WriteCloser
	answers *bufio.Scanner
	mu      sync.Mutex
}

// launch starts a program, of this release if path is empty.
func launch(t *testing.T, path, dsn, name string, env ...string) *process {
	t.Helper()
	if path == "" {
		var err error
		path, err = os.Executable()
		require.NoError(t, err)
	}
	p := &process{t: t, name: name, cmd: exec.CommandContext(context.Background(), path)}
	p.cmd.Env = append(append(os.Environ(), program.EnvDSN+"="+dsn, program.EnvName+"="+name), env...)
	p.cmd.Stderr = os.Stderr
	var err error
	p.in, err = p.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	p.answers = bufio.NewScanner(out)
	require.NoError(t, p.cmd.Start())
	t.Cleanup(p.kill)
	return p
}

// ask says a line and returns the answer.
func (p *process) ask(format string, args ...any) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err := fmt.Fprintf(p.in, format+"\n", args...); err != nil {
		return err.Error()
	}
	if !p.answers.Scan() {
		return fmt.Sprintf("no answer: %v", p.answers.Err())
	}
	return p.answers.Text()
}

func (p *process) do(format string, args ...any) {
	p.t.Helper()
	require.Equal(p.t, "ok", p.ask(format, args...), format, args)
}

// kill ends the process at once, if it runs.
func (p *process) kill() {
	if p.cmd.ProcessState == nil {
		_ = p.cmd.Process.Kill() // it may have ended
		_ = p.cmd.Wait()         // it was killed
	}
}

// leave lets the process end as it should.
func (p *process) leave() {
	p.t.Helper()
	p.do("stop")
	require.NoError(p.t, p.in.Close())
	require.NoError(p.t, p.cmd.Wait())
}
