// Command bluecone looks after a deployment of the event bus: see docs/cli.md.
//
// It is package cli with the drivers of all three databases. Inside a program of your own, package
// cli also knows your jobs, checks and event types.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/bluecone-go/bluecone/cmd/bluecone/cli"
	"github.com/bluecone-go/bluecone/dburl"
	"github.com/bluecone-go/bluecone/ops"
	"github.com/bluecone-go/bluecone/outbox"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(cli.Execute(ctx, command(os.Getenv)))
}

// command is the command line with the flags that say which database.
func command(getenv func(string) string) *cobra.Command {
	var address string
	var personal []string
	var verbose bool
	root := cli.Command(cli.Config{Open: func(ctx context.Context) (cli.Deployment, error) {
		logger := slog.New(slog.DiscardHandler)
		if verbose {
			logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
		}
		if address == "" {
			address = getenv("BLUECONE_DSN")
		}
		return open(ctx, address, personal, logger)
	}})
	root.PersistentFlags().StringVar(&address, "dsn", "",
		"database, better given as BLUECONE_DSN, which nobody sees in the list of processes:\n"+dburl.Forms)
	root.PersistentFlags().StringSliceVar(&personal, "personal", nil,
		"fields that hold personal data, by name or path, to be hidden in payloads; \"none\" if there are none")
	root.PersistentFlags().BoolVar(&verbose, "verbose", false, "log to standard error")
	if info, ok := debug.ReadBuildInfo(); ok {
		root.Version = info.Main.Version
	}
	root.AddCommand(version(root), ledgerCommand(func() string {
		if address == "" {
			address = getenv("BLUECONE_DSN")
		}
		return address
	}))
	return root
}

// version is the command that says which build this is. It needs no database.
func version(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Say which version this is", Args: cobra.NoArgs,
		Long:    "Say which version this is, and the version of Go that built it. A build from a working tree is \"(devel)\".",
		Example: "  bluecone version",
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "bluecone %s %s\n", root.Version, runtime.Version())
			return err
		},
	}
}

// open opens the deployment of a database. This program has no consumers, jobs or event types.
func open(ctx context.Context, address string, personal []string, logger *slog.Logger) (cli.Deployment, error) {
	slog.SetDefault(logger)
	if address == "" {
		return cli.Deployment{}, fmt.Errorf("%w: --dsn is missing: give it or set BLUECONE_DSN; %s", cli.ErrUsage, dburl.Forms)
	}
	connect := dburl.OpenExisting
	if cli.MayCreate(ctx) {
		connect = dburl.Open
	}
	db, err := connect(ctx, address)
	switch {
	case errors.Is(err, dburl.ErrDSN):
		return cli.Deployment{}, fmt.Errorf("%w: --dsn: %w", cli.ErrUsage, err)
	case errors.Is(err, dburl.ErrUnreachable):
		return cli.Deployment{}, fmt.Errorf("%w: %s", cli.ErrUnreachable, strings.TrimPrefix(err.Error(), dburl.ErrUnreachable.Error()+" "))
	case err != nil:
		return cli.Deployment{}, err
	}
	ob, err := outbox.New(db, outbox.Config{Logger: logger})
	if err != nil {
		return cli.Deployment{}, errors.Join(err, db.Close())
	}
	o, err := ops.New(db, ob, ops.Config{Logger: logger, Personal: personal})
	if err != nil {
		return cli.Deployment{}, errors.Join(err, db.Close())
	}
	return cli.Deployment{Ops: o, DB: db, UnknownFields: len(personal) == 0}, nil
}
