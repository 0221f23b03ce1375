// Package cli is the command line for the operators of a deployment.
//
// # Contract
//
// [Command] is a cobra command like any other: it is the program bluecone, and it can be added to a
// program of your own, where it also knows your jobs, checks, sections and publishable types.
//
// What a command was asked for goes to standard output, everything else to standard error. Nothing
// that comes from the database can steer a terminal: control characters are shown as escapes.
// Payloads are shown on demand only, and that leaves a row in the audit log.
//
// Every command that changes something has --dry-run, which changes nothing and says what would be
// done, and otherwise demands --reason, which is kept in the audit log with --actor. The one
// exception is migrate up: before it there may be no audit log.
//
// A mistake is one line that names it, and an exit status that a script can use: see [ExitCode].
package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/consistency"
	"github.com/bluecone-go/bluecone/ops"
)

// Deployment is what the commands work on.
type Deployment struct {
	// Ops reads and steers it, with the jobs, sections and publishable types of this program. Required.
	Ops *ops.Ops
	// DB is the database of Ops. It is closed when the command is done. Required.
	DB *bun.DB
	// UnknownFields says that this program knows neither event types nor names of fields that hold personal data. Payloads are
	// refused then. Default: false.
	UnknownFields bool
	// Consistency configures how "check run" looks. Default: the zero value.
	Consistency consistency.Config
	// Checks are looked at by "check run" beside the built-in ones; what they find is repaired
	// by the job of that name, if Ops has it. Default: none.
	Checks []consistency.Checker
}

// Config configures a [Command].
type Config struct {
	// Open opens what the commands work on. Wrap [ErrUsage] and [ErrUnreachable] for the exit
	// status. It must not demand that the tables are there: "migrate up" makes them. Default: none, it is required.
	Open func(ctx context.Context) (Deployment, error)
	// Name is what the command is called. Default: "bluecone".
	Name string
}

// Command returns the command with all its subcommands.
func Command(cfg Config) *cobra.Command {
	if cfg.Name == "" {
		cfg.Name = "bluecone"
	}
	a := &app{cfg: cfg}
	root := group(cfg.Name, "Looks after an event bus: what waits, what failed and why, and what to do about it",
		a.status(), eventCommands{a}.events(), a.trace(), deadCommands{a}.dead(), consumerCommands{a}.consumers(),
		jobCommands{a}.jobs(), a.brokers(), a.reservations(), a.check(), a.doctor(), bulkCommands{a}.bulk(), a.publish(), a.audit(),
		migrateCommands{a}.migrate())
	root.Long = about
	root.SilenceErrors, root.SilenceUsage = true, true
	root.PersistentFlags().VarP(&a.format, "output", "o", "how to print: table, json or csv")
	complete(root, "output", formats...)
	root.SetFlagErrorFunc(wrongFlag)
	root.SetUsageTemplate(root.UsageTemplate() + exitStatuses)
	return root
}

const about = `Looks after a deployment of the event bus: what waits, what failed and why, and what to do about it.

Start here:  status              is anything wrong?
             dead list           what failed for good, by cause
             trace KEY           everything about an order, an event, a trace
             dead retry          after the cause is fixed
`

// app is what the commands share.
type app struct {
	cfg    Config
	format format
}

// call is one run of a command.
type call struct {
	Deployment
	printer
	args []string
}

// payload reveals a payload, unless nobody has said what to hide in it.
func (c *call) payload(ctx context.Context, op ops.Operation, eventID string) (ops.Payload, error) {
	if c.UnknownFields {
		return ops.Payload{}, fmt.Errorf("%w: --payload: this program does not know which fields hold personal data: name them, as in "+
			"--personal phone,user.email, or say --personal none", ErrUsage)
	}
	return c.Ops.Payload(ctx, op, eventID)
}

// run opens the deployment for fn and closes it afterwards.
func (a *app) run(fn func(ctx context.Context, c *call) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) (err error) {
		if a.cfg.Open == nil {
			return errors.New("cli.Config.Open is nil: say how to open the deployment")
		}
		d, err := a.cfg.Open(cmd.Context())
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, d.DB.Close()) }()
		return fn(cmd.Context(), &call{Deployment: d, printer: printer{cmd, a.format}, args: args})
	}
}
