// Package cli is how the demo's programs read their command lines, and say what is wrong with them.
package cli

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/bluecone-go/bluecone/dburl"
	"github.com/bluecone-go/bluecone/relay"
)

// The exit statuses.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

// ErrUsage is a mistake on the command line.
var ErrUsage = errors.New("usage")

// Status says in one line what a program has ended with, and answers its exit status: 2 for a mistake in the call, 1 for other errors.
func Status(program string, err error, stderr io.Writer) int {
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return exitOK
	}
	_, _ = fmt.Fprintln(stderr, program+":", strings.Join(strings.Fields(err.Error()), " "))
	if errors.Is(err, ErrUsage) || errors.Is(err, dburl.ErrDSN) || errors.Is(err, relay.ErrURL) {
		return exitUsage
	}
	return exitFailure
}

// Parse reads flags without printing anything but the help.
func Parse(fs *flag.FlagSet, args []string, stdout io.Writer, usage string) error {
	fs.SetOutput(io.Discard)
	err := fs.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		_, _ = fmt.Fprintln(stdout, usage)
		fs.SetOutput(stdout)
		fs.PrintDefaults()
		return err
	case err != nil:
		return fmt.Errorf("%w: %w (see --help)", ErrUsage, err)
	case fs.NArg() > 0:
		return fmt.Errorf("%w: the argument %q is not expected (see --help)", ErrUsage, fs.Arg(0))
	}
	return nil
}

// LogTo makes the program's log lines of JSON.
func LogTo(w io.Writer, verbose bool) {
	level := slog.LevelInfo
	if verbose {
		level = slog.LevelDebug
	}
	slog.SetDefault(slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level})))
}
