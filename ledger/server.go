package ledger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"connectrpc.com/connect"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/spi"
	"github.com/bluecone-go/bluecone/ledger/ledgerv1/ledgerv1connect"
	"github.com/bluecone-go/bluecone/outbox"
)

// Config configures a [Server].
type Config struct {
	// Authorizer says who calls. Required: the service is closed without it.
	Authorizer Authorizer
	// Lease is how long a consumer has a delivery unless it sends Heartbeats. At most 60 s. Default: 30 s.
	Lease time.Duration
	// CheckHosts are the hosts, with or without a port, that a reservation's checkUrl may name. Default: loopback addresses only.
	CheckHosts []string
	// Logger receives what goes wrong, never a token or a payload. Default: slog.Default().
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	if c.Lease == 0 {
		c.Lease = 30 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

func (c Config) validate() error {
	var errs []error
	if c.Authorizer == nil {
		errs = append(errs, errors.New("ledger.Config.Authorizer is nil: give it the Authorize of ledger.ReadTokens, or a function of your own"))
	}
	if c.Lease < 0 || c.Lease > maxLease {
		errs = append(errs, fmt.Errorf("ledger.Config.Lease is %v: it must be between 0 (30 s) and %v", c.Lease, maxLease))
	}
	for _, h := range c.CheckHosts {
		if u, err := url.Parse("http://" + h); err != nil || h == "" || u.Host != h {
			errs = append(errs, fmt.Errorf("ledger.Config.CheckHosts has %q: write a host, with or without a port", h))
		}
	}
	return errors.Join(errs...)
}

// Server is the service. It is an http.Handler for the paths under /bluecone.ledger.v1.Ledger/.
type Server struct {
	handler   http.Handler
	reserving reserving
	waiting   *waiting
}

// part is what the parts of the service share.
type part struct {
	cfg Config
	db  *bun.DB
	ob  *outbox.Outbox
}

// calls are all methods of the contract.
type calls struct {
	reserving
	consuming
	asking
}

// New returns the service of an outbox, which db is the pool of. All mistakes in cfg are reported at once.
func New(db *bun.DB, ob *outbox.Outbox, cfg Config) (*Server, error) {
	if db == nil || ob == nil {
		return nil, errors.New("ledger.New: db and ob must not be nil: make the outbox by outbox.New(db, outbox.Config{})")
	}
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	remote, err := spi.NewRemoteDeliveries(db, cfg.Logger, cfg.Lease, maxAttempts, bus.Backoff)
	if err != nil {
		return nil, err
	}
	booked, err := spi.NewReservations(db)
	if err != nil {
		return nil, err
	}
	p := &part{cfg: cfg, db: db, ob: ob}
	s := &Server{reserving: reserving{publishing{p}, booked}, waiting: newWaiting(db, remote, cfg.Logger)}
	opts := []connect.HandlerOption{
		connect.WithCodec(jsonCodec{}), connect.WithCodec(utf8JSONCodec{}), connect.WithCodec(protoCodec{}), connect.WithReadMaxBytes(maxBody),
	}
	_, methods := ledgerv1connect.NewLedgerHandler(calls{s.reserving, consuming{p, remote, s.waiting}, asking{p}}, opts...)
	refuse := refusing(opts...)
	s.handler = authorized(cfg.Authorizer, refuse, limited(spi.NewCrowd(maxCallers), refuse, methods))
	return s, nil
}

// ServeHTTP answers a call.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.handler.ServeHTTP(w, r) }

// Path is where the service is to be mounted.
const Path = "/" + ledgerv1connect.LedgerName + "/"

// Run watches for deliveries on behalf of those who wait in Fetch, and asks the producers of reservations that have expired, until ctx
// ends; then calls of Fetch that wait return, and new ones are refused.
func (s *Server) Run(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.reserving.askBack(ctx)
	}()
	s.waiting.run(ctx)
	<-done
	return nil
}

// failed is the error of a call of which the caller is not at fault. The log has what the caller does not see.
func (s *part) failed(ctx context.Context, call string, err error) error {
	if ctx.Err() != nil {
		return connect.NewError(connect.CodeOf(ctx.Err()), ctx.Err())
	}
	s.cfg.Logger.WarnContext(ctx, "a call of the ledger failed", "call", call, "caller", callerOf(ctx).Name, "error", err)
	return connect.NewError(connect.CodeUnavailable, errors.New("the ledger's database did not answer as it should: call again"))
}

func invalid(format string, args ...any) error {
	return connect.NewError(connect.CodeInvalidArgument, fmt.Errorf(format, args...))
}
