package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/dburl"
	"github.com/bluecone-go/bluecone/demo/bluecone/module/points"
	"github.com/bluecone-go/bluecone/demo/bluecone/module/wallet"
	"github.com/bluecone-go/bluecone/demo/cli"
	"github.com/bluecone-go/bluecone/invariant"
)

const checkUsage = `Checks what must be true of a database that the monolith has worked on: that no event is lost,
doubled or out of turn, and that no cent or point is. It only reads. Exit status 1 means that something is broken.
`

var errBroken = errors.New("the database breaks a promise: see the lines above")

// check prints every broken invariant, of the bus and of the demo's money.
func check(ctx context.Context, args []string, stdout io.Writer) (err error) {
	fs := flag.NewFlagSet("bluecone check", flag.ContinueOnError)
	database := fs.String("dsn", "", "database (required)")
	quiet := fs.Bool("quiet", false, "nothing is under way: every event must have come to its end")
	if err := cli.Parse(fs, args, stdout, checkUsage); err != nil {
		return err
	}
	if *database == "" {
		return fmt.Errorf("%w: --dsn is missing", cli.ErrUsage)
	}
	slog.SetDefault(slog.New(slog.DiscardHandler))
	db, err := dburl.Open(ctx, *database)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	found, err := invariant.Check(ctx, db, invariant.Config{Quiet: *quiet})
	if err != nil {
		return err
	}
	money, err := conservation(ctx, db)
	if err != nil {
		return err
	}
	for _, line := range money {
		if _, err := fmt.Fprintln(stdout, "I15 money:", line); err != nil {
			return err
		}
	}
	if err := invariant.Print(stdout, found); err != nil {
		return err
	}
	if len(found)+len(money) > 0 {
		return errBroken
	}
	return nil
}

// conservation lists accounts whose cents or points do not add up.
func conservation(ctx context.Context, db *bun.DB) ([]string, error) {
	cents, err := wallet.New(db)
	if err != nil {
		return nil, err
	}
	pts, err := points.New(db)
	if err != nil {
		return nil, err
	}
	broken, err := cents.Verify(ctx)
	if err != nil {
		return nil, err
	}
	more, err := pts.Verify(ctx)
	return append(broken, more...), err
}
