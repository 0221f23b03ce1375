// Command bluecone is the demo of the event bus: a small monolith of orders, payments,
// coupons, wallets and points.
//
//	go run ./demo/bluecone                 plays every scenario on an embedded database
//	go run ./demo/bluecone --dsn DSN       the same on another database
//	go run ./demo/bluecone serve --dsn DSN one instance of the monolith over HTTP
//	go run ./demo/bluecone doctor --dsn DSN says whether the database is fit, and what to fix
//	go run ./demo/bluecone loyalty --dsn DSN is the command demo/loyalty, for the scenario of two services
//	go run ./demo/bluecone ledger --dsn DSN serves the ledger of its database, for the scenario of the points that have moved
//	go run ./demo/bluecone points --dsn DSN is the command demo/points, likewise
//	go run ./demo/bluecone check --dsn DSN  says whether anything is lost, doubled or out of turn
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/bluecone-go/bluecone/demo/bluecone/observe"
	"github.com/bluecone-go/bluecone/demo/bluecone/settings"
	"github.com/bluecone-go/bluecone/demo/bluecone/story"
	"github.com/bluecone-go/bluecone/demo/cli"
	loyalty "github.com/bluecone-go/bluecone/demo/loyalty/service"
	points "github.com/bluecone-go/bluecone/demo/points/service"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	var err error
	switch {
	case len(args) > 0 && args[0] == "serve":
		err = serve(ctx, args[1:], stdout, stderr)
	case len(args) > 0 && args[0] == "doctor":
		err = examine(ctx, args[1:], stdout)
	case len(args) > 0 && args[0] == "check":
		err = check(ctx, args[1:], stdout)
	case len(args) > 0 && args[0] == "loyalty":
		err = loyalty.Run(ctx, args[1:], stdout, stderr)
	case len(args) > 0 && args[0] == "points":
		err = points.Run(ctx, args[1:], stdout, stderr)
	case len(args) > 0 && args[0] == "ledger":
		err = serveLedger(ctx, args[1:], stdout, stderr)
	case len(args) > 0 && !strings.HasPrefix(args[0], "-"):
		err = fmt.Errorf("%w: the command %q is unknown: use serve, doctor, check, loyalty, points or ledger, or no command to play scenarios",
			cli.ErrUsage, args[0])
	default:
		err = play(ctx, args, stdout, stderr)
	}
	return cli.Status("bluecone", err, stderr)
}

const playUsage = `Plays the scenarios of the demo and checks what came of them.

  go run ./demo/bluecone [--dsn DSN] [--scenario NAME,NAME] [--trace stdout|otlp]
  go run ./demo/bluecone serve --dsn DSN [--addr HOST:PORT] [--host NAME,NAME] [--config FILE] [--faults] [--node NAME]
                               [--trace stdout|otlp] [--relay URL] [--relay-types TYPE,TYPE] [--points URL]
  go run ./demo/bluecone doctor --dsn DSN [--json]
  go run ./demo/bluecone check --dsn DSN [--quiet]

These are for the scenarios two-services and extracted-points (COMMAND --help says more):

  go run ./demo/bluecone loyalty --dsn DSN --inbox URL
  go run ./demo/bluecone ledger --dsn DSN --tokens FILE
  go run ./demo/bluecone points --dsn DSN --from DSN --ledger URL --token FILE

DSN is sqlite:///abs/path/file.db, mysql://user:password@host:port/name or postgres://user:password@host:port/name.
`

// play runs the story.
func play(ctx context.Context, args []string, stdout, _ io.Writer) (err error) {
	fs := flag.NewFlagSet("bluecone", flag.ContinueOnError)
	database := fs.String("dsn", "", "database to play on (default: a SQLite file in a temporary folder)")
	names := fs.String("scenario", "", "play only these, separated by commas: "+strings.Join(story.Names(), ", "))
	trace := fs.String("trace", "", "export spans: stdout or otlp")
	if err := cli.Parse(fs, args, stdout, playUsage); err != nil {
		return err
	}
	wanted, err := story.Select(*names)
	if err != nil {
		return fmt.Errorf("%w: %w", cli.ErrUsage, err)
	}
	if err := checkTrace(*trace); err != nil {
		return err
	}
	conf, err := settings.Load("", os.Environ())
	if err != nil {
		return fmt.Errorf("%w: %w", cli.ErrUsage, err)
	}
	slog.SetDefault(slog.New(slog.DiscardHandler))
	spans := story.NewSpans()
	telemetry, err := observe.Setup(ctx, *trace, stdout, spans)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, telemetry.Close(context.WithoutCancel(ctx))) }()
	return story.Play(ctx, story.Options{
		DSN: *database, Scenarios: wanted, Settings: conf, Spans: spans, Out: stdout, Metrics: telemetry.Metrics,
	})
}

func checkTrace(export string) error {
	switch export {
	case "", "stdout", "otlp":
		return nil
	}
	return fmt.Errorf("%w: --trace %q is unknown: use stdout or otlp", cli.ErrUsage, export)
}
