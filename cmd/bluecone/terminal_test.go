package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/creack/pty"
	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/ops"
)

// screen is a program in a terminal of its own.
type screen struct {
	t    *testing.T
	cmd  *exec.Cmd
	tty  *os.File
	seen bytes.Buffer
}

func (d *deployment) terminal(columns uint16, args ...string) *screen {
	d.t.Helper()
	self, err := os.Executable()
	require.NoError(d.t, err)
	cmd := exec.CommandContext(d.t.Context(), self, args...)
	cmd.Env = append(os.Environ(), childEnv+"=bluecone", "BLUECONE_DSN="+d.dsn, "TERM=xterm")
	tty, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 40, Cols: columns})
	require.NoError(d.t, err)
	d.t.Cleanup(func() { _ = tty.Close() })
	return &screen{t: d.t, cmd: cmd, tty: tty}
}

// until reads what is written, until it contains the text; "" means to the end of the program.
func (s *screen) until(text string) string {
	s.t.Helper()
	part := make([]byte, 4096)
	for text == "" || !strings.Contains(s.seen.String(), text) {
		n, err := s.tty.Read(part)
		s.seen.Write(part[:n])
		if err != nil { // a terminal whose program has ended answers EIO
			if text != "" && !strings.Contains(s.seen.String(), text) {
				require.Fail(s.t, "the program ended", "without %q: %s (%v)", text, s.seen.String(), errors.Join(err, io.ErrUnexpectedEOF))
			}
			break
		}
	}
	return s.seen.String()
}

// code is the exit status.
func (s *screen) code() int {
	s.t.Helper()
	s.until("")
	_ = s.cmd.Wait() // the exit status says it
	return s.cmd.ProcessState.ExitCode()
}

// Watching redraws the screen, and ends well when somebody presses Ctrl-C.
func TestWatchingEndsOnCtrlC(t *testing.T) {
	t.Parallel()
	d := newDeployment(t, "sqlite")
	d.save(paid{OrderID: "1"})
	d.work(nil)
	s := d.terminal(120, "status", "--watch", "--interval", "1s")
	require.Contains(t, s.until("Wallet"), "\x1b[H\x1b[2J", "it draws on a cleared screen")
	s.seen.Reset()
	s.until("\x1b[H\x1b[2J") // a second look
	_, err := s.tty.Write([]byte{3})
	require.NoError(t, err)
	require.Zero(t, s.code(), s.seen.String())
}

// A narrow terminal gets lines that fit it; what is not a terminal gets whole ones.
func TestTablesFitTheTerminal(t *testing.T) {
	t.Parallel()
	d := newDeployment(t, "sqlite")
	d.save(paid{OrderID: "1"})
	d.work(bus.Permanent(errors.New(strings.Repeat("the points service is away ", 5))))
	const columns = 50
	s := d.terminal(columns, "consumers", "list")
	require.Zero(t, s.code(), s.seen.String())
	require.Contains(t, s.seen.String(), "Points")
	for line := range strings.Lines(s.seen.String()) {
		require.LessOrEqual(t, len([]rune(strings.TrimRight(line, "\r\n"))), columns, line)
	}
	require.Contains(t, d.ok("consumers", "list"), "points service is away the points service is away")
}

// Long work shows a bar on a terminal, which is gone when the work is done.
func TestLongWorkShowsABar(t *testing.T) {
	t.Parallel()
	d := newDeployment(t, "sqlite")
	for i := range 30 {
		d.save(paid{OrderID: strings.Repeat("x", i+1)})
	}
	d.work(bus.Permanent(errors.New("away")))
	s := d.terminal(100, "dead", "retry", "--all", "--rate", "20", "--reason", "it is back")
	require.Contains(t, s.until("/30"), "%")
	require.Zero(t, s.code(), s.seen.String())
}

// Whoever stops watching long work leaves it to the deployment, and is told so and how to look.
func TestCtrlCLeavesLongWorkToTheDeployment(t *testing.T) {
	t.Parallel()
	d := newDeployment(t, "sqlite")
	d.save(paid{OrderID: "1"}, paid{OrderID: "2"}, paid{OrderID: "3"})
	d.work(bus.Permanent(errors.New("away")))
	s := d.terminal(100, "dead", "retry", "--all", "--rate", "0.1", "--reason", "it is back")
	s.until("/3")
	_, err := s.tty.Write([]byte{3})
	require.NoError(t, err)
	require.Equal(t, 130, s.code(), s.seen.String())
	require.Contains(t, s.seen.String(), "goes on in the background")
	require.Equal(t, ops.BulkRunning, as[ops.Page[ops.Bulk]](t, d.ok("bulk", "list", "-o", "json")).Rows[0].State)
}

// Long work that somebody else cancels has failed for whoever waits for it.
func TestCanceledWorkIsNoSuccess(t *testing.T) {
	t.Parallel()
	d := newDeployment(t, "sqlite")
	d.save(paid{OrderID: "1"}, paid{OrderID: "2"}, paid{OrderID: "3"})
	d.work(bus.Permanent(errors.New("away")))
	s := d.terminal(100, "dead", "retry", "--all", "--rate", "0.1", "--reason", "it is back")
	s.until("/3")
	id := as[ops.Page[ops.Bulk]](t, d.ok("bulk", "list", "-o", "json")).Rows[0].ID
	d.ok("bulk", "cancel", id, "--reason", "not yet")
	require.Equal(t, 1, s.code(), s.seen.String())
	require.Contains(t, s.seen.String(), "is CANCELED after")
}

// A pause without an end says so, wherever it is shown.
func TestAPauseWithoutAnEndSaysSo(t *testing.T) {
	t.Parallel()
	d := newDeployment(t, "sqlite")
	d.save(paid{OrderID: "1"})
	d.work(nil)
	require.Contains(t, d.ok("consumers", "pause", "Points", "--indefinitely", "--reason", "moving"),
		"until somebody resumes it; 0 deliveries wait for it")
	require.Contains(t, d.ok("consumers", "list"), "until resumed")
}
