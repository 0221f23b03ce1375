// Package service is the demo's points in a process of their own.
package service

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/dburl"
	"github.com/bluecone-go/bluecone/demo/bluecone/database"
	"github.com/bluecone-go/bluecone/demo/bluecone/faults"
	"github.com/bluecone-go/bluecone/demo/bluecone/module/points"
	"github.com/bluecone-go/bluecone/demo/cli"
	"github.com/bluecone-go/bluecone/demo/httpserver"
	"github.com/bluecone-go/bluecone/ledger"
	"github.com/bluecone-go/bluecone/ledger/remote"
)

const usage = `Serves the points in a process of their own. It copies them from the monolith's database once, when nothing is under way
there any more, and then gets its events from the ledger. The monolith asks it for accounts (go run ./demo/bluecone serve --points URL).
SIGTERM drains and exits 0, a second one exits at once.

  points --dsn DSN --from DSN --ledger URL --token FILE [--addr HOST:PORT] [--host NAME,NAME]

DSN is sqlite:///abs/path/file.db, mysql://user:password@host:port/name or postgres://user:password@host:port/name.
`

const (
	// heartbeat is less than half of the lease that the demo's ledger gives.
	heartbeat = 500 * time.Millisecond
	// atOnce is small, because what a killed process had in flight comes again one by one.
	atOnce = 8
	// sealEvery is how often the service looks whether it can take the points over.
	sealEvery = 100 * time.Millisecond
)

// flags are those of the command line.
type flags struct{ addr, host, dsn, from, ledger, token string }

func (f *flags) define(fs *flag.FlagSet) {
	fs.StringVar(&f.addr, "addr", "127.0.0.1:8091", "address to listen on; port 0 chooses one and prints it")
	fs.StringVar(&f.host, "host", "", "names that requests may be for, with commas, beside localhost, IP addresses and the name in --addr")
	fs.StringVar(&f.dsn, "dsn", "", "database of the points (required)")
	fs.StringVar(&f.from, "from", "", "database of the monolith, from which the points are copied once (required)")
	fs.StringVar(&f.ledger, "ledger", "", "address of the ledger of that database (required)")
	fs.StringVar(&f.token, "token", "", "file with the ledger's token for PointsConsumer (required)")
}

// Run serves the points until ctx ends.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	var f flags
	fs := flag.NewFlagSet("points", flag.ContinueOnError)
	f.define(fs)
	if err := cli.Parse(fs, args, stdout, usage); err != nil {
		return err
	}
	if f.dsn == "" || f.from == "" || f.ledger == "" || f.token == "" {
		return fmt.Errorf("%w: --dsn, --from, --ledger and --token are required (see --help)", cli.ErrUsage)
	}
	cli.LogTo(stderr, false)
	client, err := f.client()
	if err != nil {
		return err
	}
	db, err := dburl.Open(ctx, f.dsn)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := database.UpModule(ctx, db, "points"); err != nil {
		return err
	}
	facade, err := points.New(db)
	if err != nil {
		return err
	}
	if err := f.takeOver(ctx, facade); err != nil {
		return err
	}
	b := bus.New(db, bus.Config{})
	points.Register(b, facade, &faults.Set{})
	consumer, err := remote.Consumer(b, client, remote.Config{Heartbeat: heartbeat, Max: atOnce})
	if err != nil {
		return err
	}
	return f.serve(ctx, db, facade, consumer, stdout)
}

// client reads --ledger and --token.
func (f *flags) client() (*ledger.Client, error) {
	token, err := os.ReadFile(f.token)
	if err != nil {
		return nil, fmt.Errorf("%w: --token: %w", cli.ErrUsage, err)
	}
	c, err := ledger.NewClient(ledger.ClientConfig{URL: f.ledger, Token: strings.TrimSpace(string(token))})
	if err != nil {
		return nil, fmt.Errorf("%w: --ledger: %w", cli.ErrUsage, err)
	}
	return c, nil
}

// takeOver copies the points, unless that was done, as soon as nothing is under way where they come from.
func (f *flags) takeOver(ctx context.Context, facade *points.Facade) (err error) {
	from, err := dburl.Open(ctx, f.from)
	if err != nil {
		return fmt.Errorf("--from: %w", err)
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	for isFirst := true; ; isFirst = false {
		err := facade.Move(ctx, from)
		if !errors.Is(err, points.ErrOpen) {
			return err
		}
		if isFirst {
			slog.InfoContext(ctx, "the points wait until nothing is under way where they come from: is their consumer paused?", "error", err)
		}
		select {
		case <-time.After(sealEvery):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (f *flags) serve(ctx context.Context, db *bun.DB, facade *points.Facade, consumer bus.Runner, stdout io.Writer) error {
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", f.addr)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	_, _ = fmt.Fprintf(stdout, "points listens on http://%s\n", listener.Addr())
	return httpserver.Serve(ctx, listener, handler(db, facade, httpserver.HostNames(f.addr, f.host)), func(ctx context.Context) error {
		return bus.Run(ctx, consumer)
	})
}
