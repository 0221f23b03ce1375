package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"
	"github.com/uptrace/bun"
	"go.opentelemetry.io/otel"
	otelprom "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/cmd/bluecone/cli"
	"github.com/bluecone-go/bluecone/dburl"
	"github.com/bluecone-go/bluecone/ledger"
	"github.com/bluecone-go/bluecone/migrations"
	"github.com/bluecone-go/bluecone/outbox"
)

// service are the flags of "ledger serve".
type service struct {
	addr, tokens      string
	insecureLoopback  bool
	lease             time.Duration
	checkHosts        []string
	cert, key, caFile string
	dsn               func() string // of the flag that all commands have, or the environment
}

// ledgerCommand runs the ledger, for programs that have left the monolith and for other languages.
func ledgerCommand(dsn func() string) *cobra.Command {
	f := &service{dsn: dsn}
	serve := &cobra.Command{
		Use: "serve", Short: "Run the ledger: publish and consume events by calls over HTTP", Args: cobra.NoArgs,
		Long: "Run the ledger on a database: other programs publish and consume events by calls (gRPC, or JSON over HTTP/1.1).\n" +
			"It migrates the tables at the start, and delivers; SIGTERM lets running calls end. Several instances may share a database.",
		Example: "  bluecone ledger serve --dsn \"$DSN\" --addr 127.0.0.1:8085 --tokens tokens.json",
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context()) },
	}
	flags := serve.Flags()
	flags.StringVar(&f.addr, "addr", "127.0.0.1:8085", "address to listen at")
	flags.StringVar(&f.tokens, "tokens", "", "file of bearer tokens, JSON: {\"<token>\": {\"name\": \"shop\", \"publish\": [\"order.*\"], "+
		"\"consume\": [\"PointsConsumer\"], \"rate\": 100}}; read again within 5 s of a change")
	flags.BoolVar(&f.insecureLoopback, "insecure-loopback", false, "let everybody on this machine do everything; only with a loopback address")
	flags.DurationVar(&f.lease, "lease", 30*time.Second, "how long a consumer has a delivery without a Heartbeat, at most 60s")
	flags.StringSliceVar(&f.checkHosts, "check-hosts", nil, "hosts that checkUrl of a reservation may name (default loopback only)")
	flags.StringVar(&f.cert, "tls-cert", "", "certificate file; with --tls-key the service speaks TLS")
	flags.StringVar(&f.key, "tls-key", "", "key file of --tls-cert")
	flags.StringVar(&f.caFile, "client-ca", "",
		"file of certificates: a caller whose certificate one of them has signed needs no token, if its "+
			"common name is a name in --tokens")
	cmd := &cobra.Command{Use: "ledger", Short: "The ledger: one book of events for several services"}
	cmd.AddCommand(serve)
	return cmd
}

func (f *service) check() error {
	host, _, err := net.SplitHostPort(f.addr)
	if err != nil {
		return fmt.Errorf("%w: --addr %q: write host:port", cli.ErrUsage, f.addr)
	}
	ip := net.ParseIP(host)
	isLoopback := host == "localhost" || (ip != nil && ip.IsLoopback())
	switch {
	case f.tokens == "" && !f.insecureLoopback:
		return fmt.Errorf("%w: --tokens is missing: name a file of bearer tokens, or say --insecure-loopback on a loopback address", cli.ErrUsage)
	case f.insecureLoopback && f.tokens != "":
		return fmt.Errorf("%w: --insecure-loopback and --tokens exclude each other: leave one of them out", cli.ErrUsage)
	case f.insecureLoopback && !isLoopback:
		return fmt.Errorf("%w: --insecure-loopback needs a loopback address, and --addr is %q: write 127.0.0.1:port", cli.ErrUsage, f.addr)
	case (f.cert == "") != (f.key == ""), f.caFile != "" && f.cert == "":
		return fmt.Errorf("%w: --tls-cert and --tls-key belong together, and --client-ca needs them", cli.ErrUsage)
	}
	return nil
}

// authorizer is who may call, and what keeps its file in view.
func (f *service) authorizer(logger *slog.Logger) (ledger.Authorizer, func(context.Context), error) {
	if f.insecureLoopback {
		return ledger.Anybody, func(context.Context) {}, nil
	}
	tokens, err := ledger.ReadTokens(f.tokens, logger)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: --tokens: %w", cli.ErrUsage, err)
	}
	return tokens.Authorize, tokens.Watch, nil
}

func (f *service) tls() (*tls.Config, error) {
	if f.cert == "" {
		return nil, nil //nolint:nilnil // none is no error
	}
	pair, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err != nil {
		return nil, fmt.Errorf("%w: --tls-cert: %w", cli.ErrUsage, err)
	}
	cfg := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	if f.caFile == "" {
		return cfg, nil
	}
	pem, err := os.ReadFile(f.caFile)
	if err != nil {
		return nil, fmt.Errorf("%w: --client-ca: %w", cli.ErrUsage, err)
	}
	cfg.ClientCAs = x509.NewCertPool()
	if !cfg.ClientCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%w: --client-ca: %s has no certificate", cli.ErrUsage, f.caFile)
	}
	cfg.ClientAuth = tls.VerifyClientCertIfGiven
	return cfg, nil
}

func (f *service) run(ctx context.Context) (err error) {
	if err := f.check(); err != nil {
		return err
	}
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	authorize, watch, err := f.authorizer(logger)
	if err != nil {
		return err
	}
	secure, err := f.tls()
	if err != nil {
		return err
	}
	db, err := openToMigrate(ctx, f.dsn())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := migrations.Up(ctx, db); err != nil {
		return err
	}
	metrics := prometheus.NewRegistry()
	exporter, err := otelprom.New(otelprom.WithRegisterer(metrics))
	if err != nil {
		return err
	}
	otel.SetMeterProvider(metric.NewMeterProvider(metric.WithReader(exporter)))
	parts, err := newParts(db, logger, ledger.Config{Authorizer: authorize, Lease: f.lease, CheckHosts: f.checkHosts, Logger: logger})
	if err != nil {
		return err
	}
	go watch(ctx)
	return parts.serve(ctx, f.addr, secure, parts.routes(authorize, promhttp.HandlerFor(metrics, promhttp.HandlerOpts{})))
}

// openToMigrate opens the database of the service, which may be a new SQLite file.
func openToMigrate(ctx context.Context, dsn string) (*bun.DB, error) {
	if dsn == "" {
		return nil, fmt.Errorf("%w: --dsn is missing: give it or set BLUECONE_DSN; %s", cli.ErrUsage, dburl.Forms)
	}
	db, err := dburl.Open(ctx, dsn)
	switch {
	case errors.Is(err, dburl.ErrDSN):
		return nil, fmt.Errorf("%w: --dsn: %w", cli.ErrUsage, err)
	case errors.Is(err, dburl.ErrUnreachable):
		return nil, fmt.Errorf("%w: %s", cli.ErrUnreachable, strings.TrimPrefix(err.Error(), dburl.ErrUnreachable.Error()+" "))
	}
	return db, err
}

// parts are what runs in the process.
type parts struct {
	db     *bun.DB
	logger *slog.Logger
	ledger *ledger.Server
	pub    *outbox.Publisher
}

func newParts(db *bun.DB, logger *slog.Logger, cfg ledger.Config) (*parts, error) {
	ob, err := outbox.New(db, outbox.Config{Logger: logger})
	if err != nil {
		return nil, err
	}
	pub, err := outbox.NewPublisher(ob, bus.New(db, bus.Config{Logger: logger}), outbox.PublisherConfig{})
	if err != nil {
		return nil, err
	}
	s, err := ledger.New(db, ob, cfg)
	return &parts{db: db, logger: logger, ledger: s, pub: pub}, err
}

// routes are the service, /readyz for everybody, and /metrics for callers and this machine.
func (p *parts) routes(authorize ledger.Authorizer, metrics http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle(ledger.Path, p.ledger)
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
		defer cancel()
		if err := p.db.PingContext(ctx); err != nil {
			http.Error(w, "the database does not answer", http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ready\n")) // the connection is the caller's
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		ip := net.ParseIP(host)
		if _, err := authorize(r); err != nil && (ip == nil || !ip.IsLoopback()) {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "send a token", http.StatusUnauthorized)
			return
		}
		metrics.ServeHTTP(w, r)
	})
	return mux
}

const drainFor = 30 * time.Second

// serve runs until ctx ends, and lets running calls end.
func (p *parts) serve(ctx context.Context, addr string, secure *tls.Config, routes http.Handler) error {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(secure == nil) // gRPC without TLS
	server := &http.Server{
		Handler: routes, TLSConfig: secure, Protocols: protocols, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		ReadTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		ErrorLog: slog.NewLogLogger(p.logger.Handler(), slog.LevelDebug),
	}
	var listen net.ListenConfig
	l, err := listen.Listen(ctx, "tcp", addr)
	if err != nil {
		return fmt.Errorf("%w: --addr: %w", cli.ErrUsage, err)
	}
	ended := make(chan error, 3)
	go func() { ended <- p.pub.Run(ctx) }()
	go func() { ended <- p.ledger.Run(ctx) }()
	go func() {
		if secure != nil {
			ended <- server.ServeTLS(l, "", "")
		} else {
			ended <- server.Serve(l)
		}
	}()
	p.logger.InfoContext(ctx, "the ledger is ready", "addr", l.Addr().String())
	var first error
	left := 3
	select {
	case <-ctx.Done():
	case first = <-ended:
		left--
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainFor)
	defer cancel()
	err = errors.Join(first, server.Shutdown(drain))
	for ; left > 0 && ctx.Err() != nil; left-- {
		if e := <-ended; !errors.Is(e, http.ErrServerClosed) {
			err = errors.Join(err, e)
		}
	}
	return err
}
