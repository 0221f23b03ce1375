package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/bluecone-go/bluecone/dburl"
	"github.com/bluecone-go/bluecone/demo/cli"
	"github.com/bluecone-go/bluecone/demo/httpserver"
	"github.com/bluecone-go/bluecone/ledger"
	"github.com/bluecone-go/bluecone/migrations"
	"github.com/bluecone-go/bluecone/outbox"
)

const ledgerUsage = `Serves the ledger of the monolith's database, as "bluecone ledger serve" does, so that the demo needs no other program.
SIGTERM drains and exits 0.

  go run ./demo/bluecone ledger --dsn DSN --tokens FILE [--addr HOST:PORT]
`

// ledgerLease is short, so that what a killed process had in flight does not wait long.
const ledgerLease = 2 * time.Second

// serveLedger runs one instance of the ledger until ctx ends.
func serveLedger(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	fs := flag.NewFlagSet("bluecone ledger", flag.ContinueOnError)
	addr := fs.String("addr", "127.0.0.1:8085", "address to listen on; port 0 chooses one and prints it")
	dsn := fs.String("dsn", "", "database (required)")
	file := fs.String("tokens", "", "file of who may call (required): "+
		`{"TOKEN": {"name": "points", "publish": [], "consume": ["PointsConsumer"]}}`)
	if err := cli.Parse(fs, args, stdout, ledgerUsage); err != nil {
		return err
	}
	if *dsn == "" || *file == "" {
		return fmt.Errorf("%w: --dsn and --tokens are required (see --help)", cli.ErrUsage)
	}
	cli.LogTo(stderr, false)
	tokens, err := ledger.ReadTokens(*file, slog.Default())
	if err != nil {
		return fmt.Errorf("%w: --tokens: %w", cli.ErrUsage, err)
	}
	db, err := dburl.Open(ctx, *dsn)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := migrations.Up(ctx, db); err != nil {
		return err
	}
	ob, err := outbox.New(db, outbox.Config{})
	if err != nil {
		return err
	}
	service, err := ledger.New(db, ob, ledger.Config{Authorizer: tokens.Authorize, Lease: ledgerLease})
	if err != nil {
		return err
	}
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", *addr)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle(ledger.Path, service)
	_, _ = fmt.Fprintf(stdout, "the ledger listens on http://%s\n", listener.Addr())
	return httpserver.Serve(ctx, listener, mux, service.Run)
}
