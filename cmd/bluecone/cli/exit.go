package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/bluecone-go/bluecone/dburl"
	"github.com/bluecone-go/bluecone/ops"
	"github.com/bluecone-go/bluecone/outbox"
)

// The exit statuses.
const (
	exitOK          = 0
	exitFailure     = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitUnreachable = 4
	exitInterrupted = 130
)

const exitStatuses = `
Exit status: 0 done; 1 it failed, the database is not fit, or something is broken; 2 wrong usage;
3 not found; 4 the database cannot be reached; 130 interrupted.
`

var (
	// ErrUsage means that the command line is wrong.
	ErrUsage = errors.New("wrong usage")
	// ErrUnreachable means that the database does not answer.
	ErrUnreachable = errors.New("the database cannot be reached")
	errNotFound    = errors.New("not found")
)

// said is an error whose text is complete; its kind only decides the exit status.
type said struct {
	text string
	kind error
}

func (e *said) Error() string { return e.text }
func (e *said) Unwrap() error { return e.kind }

func usage(text string, args ...any) error {
	return &said{text: fmt.Sprintf(text, args...), kind: ErrUsage}
}

func notFound(text string, args ...any) error {
	return &said{text: fmt.Sprintf(text, args...), kind: errNotFound}
}

// Execute runs a command that has a [Command] below it, or is one, writes its error in one line to
// standard error, and answers the exit status.
func Execute(ctx context.Context, root *cobra.Command) int {
	err := root.ExecuteContext(ctx)
	Explain(root.ErrOrStderr(), root.Name(), err)
	return ExitCode(err)
}

// Explain writes err in one line, with what to do about it where that is known. Nil writes nothing.
func Explain(w io.Writer, name string, err error) {
	if err == nil {
		return
	}
	line := strings.Join(strings.Fields(clean(err.Error())), " ")
	var told *said
	switch {
	case errors.As(err, &told):
	case dburl.IsSchema(err):
		line += ": the tables do not fit: see '" + name + " migrate status' and '" + name + " migrate up'"
	case errors.Is(err, context.Canceled):
		line = "interrupted"
	case errors.Is(err, context.DeadlineExceeded):
		line += ": the database takes too long: see '" + name + " doctor'"
	}
	line = strings.TrimPrefix(line, ErrUsage.Error()+": ")
	if !strings.HasPrefix(line, name+" ") && !strings.HasPrefix(line, name+":") {
		line = name + ": " + line
	}
	_, _ = fmt.Fprintln(w, line) // there is nobody else to tell
}

// ExitCode is the exit status for the error of a command: 0 none; 1 it failed, the database is not
// fit, or something is broken; 2 wrong usage; 3 not found; 4 the database cannot be reached; 130
// interrupted.
func ExitCode(err error) int {
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, ErrUsage), errors.Is(err, ops.ErrInvalid):
		return exitUsage
	case errors.Is(err, errNotFound), errors.Is(err, ops.ErrNotFound), errors.Is(err, outbox.ErrNotFound):
		return exitNotFound
	case errors.Is(err, context.Canceled):
		return exitInterrupted
	case errors.Is(err, ErrUnreachable), dburl.IsLost(err), errors.Is(err, context.DeadlineExceeded):
		return exitUnreachable
	}
	return exitFailure
}

// wrongFlag says what is wrong with a flag.
func wrongFlag(cmd *cobra.Command, err error) error {
	if errors.Is(err, pflag.ErrHelp) {
		return err
	}
	if before := cmd.Flags().Args(); cmd.HasSubCommands() && len(before) > 0 {
		return unknown(cmd, before[0])
	}
	see := fmt.Sprintf("(see %s --help)", cmd.CommandPath())
	var value *pflag.InvalidValueError
	var missing *pflag.ValueRequiredError
	var none *pflag.NotExistError
	switch {
	case errors.As(err, &value):
		return usage("--%s %q: %s", value.GetFlag().Name, value.GetValue(), reasonOf(value))
	case errors.As(err, &missing):
		return usage("--%s needs a value %s", missing.GetFlag().Name, see)
	case errors.As(err, &none):
		name := "--" + none.GetSpecifiedName()
		if none.GetSpecifiedShortnames() != "" {
			name = "-" + none.GetSpecifiedName()
		}
		return usage("the flag %s is unknown%s %s", name, closeTo(none.GetSpecifiedName(), flagNames(cmd), "--"), see)
	}
	return usage("%s %s", err, see)
}

// reasonOf puts what the parsers of numbers and durations say into words.
func reasonOf(e *pflag.InvalidValueError) string {
	switch e.GetFlag().Value.Type() {
	case "duration":
		return "it is no duration: write 90s, 5m or 2h30m"
	case "int", "int64", "float64":
		return "it is no number"
	}
	return e.Unwrap().Error()
}

func flagNames(cmd *cobra.Command) []string {
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	return names
}

// group is a command that only holds others.
func group(use, short string, subs ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Args: cobra.ArbitraryArgs, SuggestionsMinimumDistance: 2}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) > 0:
			return unknown(cmd, args[0])
		case !cmd.HasParent() || cmd.Long != "":
			return cmd.Help()
		}
		return usage("%s: say what to do: %s", cmd.CommandPath(), strings.Join(names(cmd), ", "))
	}
	cmd.AddCommand(subs...)
	return cmd
}

func unknown(cmd *cobra.Command, name string) error {
	return usage("%s: the command %q is unknown%s (the commands are %s)", cmd.CommandPath(), name, closeTo(name, names(cmd), ""),
		strings.Join(names(cmd), ", "))
}

func names(cmd *cobra.Command) []string {
	var all []string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			all = append(all, sub.Name())
		}
	}
	return all
}

// takes demands exactly the named arguments.
func takes(what ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < len(what):
			return usage("%s: the %s is missing (see %s --help)", cmd.CommandPath(), what[len(args)], cmd.CommandPath())
		case len(args) > len(what):
			return usage("%s: the argument %q is not expected (see %s --help)", cmd.CommandPath(), args[len(what)], cmd.CommandPath())
		}
		for i, a := range args {
			if strings.TrimSpace(a) == "" {
				return usage("%s: the %s is empty", cmd.CommandPath(), what[i])
			}
		}
		return nil
	}
}
