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
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bluecone-go/bluecone/dburl"
	"github.com/bluecone-go/bluecone/demo/bluecone/input"
	"github.com/bluecone-go/bluecone/demo/bluecone/monolith"
	"github.com/bluecone-go/bluecone/demo/bluecone/observe"
	"github.com/bluecone-go/bluecone/demo/bluecone/settings"
	"github.com/bluecone-go/bluecone/demo/bluecone/web"
	"github.com/bluecone-go/bluecone/doctor"
)

const serveUsage = `Serves one instance of the monolith over HTTP; several may share one database.
SIGTERM drains and exits 0, a second one exits at once.
`

// serve runs one instance until ctx ends.
func serve(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	fs := flag.NewFlagSet("bluecone serve", flag.ContinueOnError)
	addr := fs.String("addr", "127.0.0.1:8080", "address to listen on; port 0 chooses one and prints it")
	host := fs.String("host", "", "names that requests may be for, with commas, beside localhost, IP addresses and the name in --addr")
	database := fs.String("dsn", "", "database (required)")
	config := fs.String("config", "", "YAML file with the keys of bluecone:")
	withFaults := fs.Bool("faults", false, "add the calls that break things on purpose")
	node := fs.String("node", "", "name of this instance in leases and logs (default: host and process)")
	trace := fs.String("trace", "", "export spans: stdout or otlp")
	noPublisher := fs.Bool("no-publisher", false, "save events and deliver none, to try out a crash in between")
	verbose := fs.Bool("verbose", false, "log every outcome, not only what needs attention")
	if err := parse(fs, args, stdout, serveUsage); err != nil {
		return err
	}
	if err := checkServe(*database, *trace, *node); err != nil {
		return err
	}
	conf, err := settings.Load(*config, os.Environ())
	if err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	logTo(stderr, *verbose)
	telemetry, err := observe.Setup(ctx, *trace, stdout)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, telemetry.Close(context.WithoutCancel(ctx))) }()
	db, err := dburl.Open(ctx, *database)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	app, err := assemble(ctx, monolith.Options{DB: db, Settings: conf, Node: *node, NoPublisher: *noPublisher})
	if err != nil {
		return err
	}
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", *addr)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	mux, token, err := addresses(app, web.Config{Faults: *withFaults, Metrics: telemetry.Metrics, Hosts: hostNames(*addr, *host)})
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	_, _ = fmt.Fprintf(stdout, "console: http://%s/console/?token=%s (this link works once)\n", listener.Addr(), token)
	_, _ = fmt.Fprintf(stdout, "bluecone listens on http://%s\n", listener.Addr())
	return listen(ctx, listener, mux, app)
}

// logTo makes the program's log lines of JSON.
func logTo(w io.Writer, verbose bool) {
	level := slog.LevelInfo
	if verbose {
		level = slog.LevelDebug
	}
	slog.SetDefault(slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level})))
}

// addresses are the API and, behind a door that the token opens once, the console.
func addresses(app *monolith.App, conf web.Config) (mux *http.ServeMux, token string, err error) {
	door, token := newDoor()
	pages, err := door.handler(app.Ops)
	if err != nil {
		return nil, "", err
	}
	mux = http.NewServeMux()
	mux.Handle("/console/", web.KnownHost(conf.Hosts, pages))
	conf.Session = door.knows
	mux.Handle("/", web.New(app, conf))
	return mux, token, nil
}

// hostNames are the names that requests may be for: those of --host, and the one to listen on.
func hostNames(addr, hosts string) []string {
	names := strings.Split(hosts, ",")
	if name, _, err := net.SplitHostPort(addr); err == nil {
		names = append(names, name)
	}
	for i := range names {
		names[i] = strings.TrimSpace(names[i])
	}
	return slices.DeleteFunc(names, func(name string) bool { return name == "" })
}

// checkServe says what is wrong with the flags.
func checkServe(database, trace, node string) error {
	if database == "" {
		return fmt.Errorf("%w: --dsn is missing", errUsage)
	}
	if err := checkTrace(trace); err != nil {
		return err
	}
	if node != "" && !input.IsWord(node) {
		return fmt.Errorf("%w: --node %q must be a plain word of at most 64 characters", errUsage, node)
	}
	return nil
}

// assemble makes the tables and the instance, unless the database is not fit.
func assemble(ctx context.Context, o monolith.Options) (*monolith.App, error) {
	app, err := monolith.New(ctx, o)
	if err != nil {
		return nil, err
	}
	return app, doctor.Start(ctx, o.DB, doctorConfig(), slog.Default())
}

// listen serves until ctx ends; then requests under way are answered and the engine drains.
func listen(ctx context.Context, listener net.Listener, handler http.Handler, app *monolith.App) error {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return app.Run(ctx) })
	g.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	g.Go(func() error {
		<-ctx.Done()
		drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
		defer cancel()
		return server.Shutdown(drain)
	})
	return g.Wait()
}
