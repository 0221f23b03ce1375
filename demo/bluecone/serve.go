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
	"os"

	"github.com/bluecone-go/bluecone/dburl"
	"github.com/bluecone-go/bluecone/demo/bluecone/input"
	"github.com/bluecone-go/bluecone/demo/bluecone/module/points"
	"github.com/bluecone-go/bluecone/demo/bluecone/monolith"
	"github.com/bluecone-go/bluecone/demo/bluecone/observe"
	"github.com/bluecone-go/bluecone/demo/bluecone/settings"
	"github.com/bluecone-go/bluecone/demo/bluecone/web"
	"github.com/bluecone-go/bluecone/demo/broker"
	"github.com/bluecone-go/bluecone/demo/cli"
	"github.com/bluecone-go/bluecone/demo/httpserver"
	"github.com/bluecone-go/bluecone/doctor"
)

const serveUsage = `Serves one instance of the monolith over HTTP; several may share one database.
SIGTERM drains and exits 0, a second one exits at once.
`

// serveFlags are the flags of serve.
type serveFlags struct {
	addr, host, dsn, config, node, trace string
	relay, relayTypes, points            string
	faults, noPublisher, verbose         bool
}

func (f *serveFlags) define(fs *flag.FlagSet) {
	fs.StringVar(&f.addr, "addr", "127.0.0.1:8080", "address to listen on; port 0 chooses one and prints it")
	fs.StringVar(&f.host, "host", "", "names that requests may be for, with commas, beside localhost, IP addresses and the name in --addr")
	fs.StringVar(&f.dsn, "dsn", "", "database (required)")
	fs.StringVar(&f.config, "config", "", "YAML file with the keys of bluecone:")
	fs.StringVar(&f.node, "node", "", "name of this instance in leases and logs (default: host and process)")
	fs.StringVar(&f.trace, "trace", "", "export spans: stdout or otlp")
	fs.StringVar(&f.relay, "relay", "", "send events to the broker of this URL: "+broker.Forms()+"; all instances, or none")
	fs.StringVar(&f.relayTypes, "relay-types", "", "the events that --relay sends, with commas (default: order.*)")
	fs.StringVar(&f.points, "points", "", "address of the points, where they run in a process of their own (demo/points)")
	fs.BoolVar(&f.faults, "faults", false, "add the calls that break things on purpose")
	fs.BoolVar(&f.noPublisher, "no-publisher", false, "save events and deliver none, to try out a crash in between")
	fs.BoolVar(&f.verbose, "verbose", false, "log every outcome, not only what needs attention")
}

// check says what is wrong with the flags.
func (f *serveFlags) check() error {
	if f.dsn == "" {
		return fmt.Errorf("%w: --dsn is missing", cli.ErrUsage)
	}
	if err := checkTrace(f.trace); err != nil {
		return err
	}
	if f.node != "" && !input.IsWord(f.node) {
		return fmt.Errorf("%w: --node %q must be a plain word of at most 64 characters", cli.ErrUsage, f.node)
	}
	return nil
}

// serve runs one instance until ctx ends.
func serve(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	var f serveFlags
	fs := flag.NewFlagSet("bluecone serve", flag.ContinueOnError)
	f.define(fs)
	if err := cli.Parse(fs, args, stdout, serveUsage); err != nil {
		return err
	}
	if err := f.check(); err != nil {
		return err
	}
	conf, err := settings.Load(f.config, os.Environ())
	if err != nil {
		return fmt.Errorf("%w: %w", cli.ErrUsage, err)
	}
	cli.LogTo(stderr, f.verbose)
	telemetry, err := observe.Setup(ctx, f.trace, stdout)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, telemetry.Close(context.WithoutCancel(ctx))) }()
	events, err := newRelay(f.relay, f.relayTypes)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, events.close()) }()
	db, err := dburl.Open(ctx, f.dsn)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := events.connect(ctx); err != nil {
		return err
	}
	o := monolith.Options{DB: db, Settings: conf, Node: f.node, NoPublisher: f.noPublisher, Register: events.register}
	if o.Points, err = f.pointsElsewhere(); err != nil {
		return err
	}
	app, err := assemble(ctx, o)
	if err != nil {
		return err
	}
	return f.listen(ctx, app, telemetry, stdout)
}

// pointsElsewhere reads --points.
func (f *serveFlags) pointsElsewhere() (*points.Client, error) {
	if f.points == "" {
		return nil, nil //nolint:nilnil // they are here
	}
	c, err := points.NewClient(f.points)
	if err != nil {
		return nil, fmt.Errorf("%w: --points %q: %w", cli.ErrUsage, f.points, err)
	}
	return c, nil
}

// listen prints where the instance is, and serves until ctx ends.
func (f *serveFlags) listen(ctx context.Context, app *monolith.App, telemetry *observe.Telemetry, stdout io.Writer) error {
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", f.addr)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	mux, token, err := addresses(app, web.Config{Faults: f.faults, Metrics: telemetry.Metrics, Hosts: httpserver.HostNames(f.addr, f.host)})
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	_, _ = fmt.Fprintf(stdout, "console: http://%s/console/?token=%s (this link works once)\n", listener.Addr(), token)
	_, _ = fmt.Fprintf(stdout, "bluecone listens on http://%s\n", listener.Addr())
	return httpserver.Serve(ctx, listener, mux, app.Run)
}

// addresses are the API and, behind a door that the token opens once, the console.
func addresses(app *monolith.App, conf web.Config) (mux *http.ServeMux, token string, err error) {
	door, token := newDoor()
	pages, err := door.handler(app.Ops)
	if err != nil {
		return nil, "", err
	}
	mux = http.NewServeMux()
	mux.Handle("/console/", httpserver.KnownHost(conf.Hosts, pages))
	conf.Session = door.knows
	mux.Handle("/", web.New(app, conf))
	return mux, token, nil
}

// assemble makes the tables and the instance, unless the database is not fit.
func assemble(ctx context.Context, o monolith.Options) (*monolith.App, error) {
	app, err := monolith.New(ctx, o)
	if err != nil {
		return nil, err
	}
	return app, doctor.Start(ctx, o.DB, doctorConfig(), slog.Default())
}
