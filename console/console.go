// Package console shows operators what the bus does, and lets them act on it: a web console and a JSON
// API, as one http.Handler.
//
// # Contract
//
// Nobody gets in until Config.Authorize says who they are: everything else is answered 404, as if there
// were no console, or 401 by [BasicAuth], so that a browser asks for a password. Every route names the
// [Permission] it needs and is reached through one gate, which checks it for pages and for the API alike.
// Config.ReadOnly leaves the changing routes out altogether. Requests that change something and come from
// another site are answered 403.
//
// Payloads are shown to holders of [PayloadView] only, on request, and each time is audited. Pages need no
// JavaScript, fetch nothing from anywhere else, and never ask another server for anything on behalf of a
// request. Every address in a page is relative, so the handler works under any prefix, with http.StripPrefix
// or without. All data comes from package ops, and with it the promise that looking disturbs nobody.
package console

import (
	"context"
	"errors"
	"html/template"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/bluecone-go/bluecone/doctor"
	"github.com/bluecone-go/bluecone/internal/crowd"
	"github.com/bluecone-go/bluecone/ops"
)

// Config configures a [Console]. The zero value works, and lets nobody in.
type Config struct {
	// Authorize tells who sent a request. [BasicAuth], [BearerToken] and [LocalOnly] are ready-made.
	// Default: none, every request is answered 404.
	Authorize Authorizer
	// ReadOnly leaves out every route that changes something, whatever anybody may do. Default: false.
	ReadOnly bool
	// Title names the service, in the title of every page. Default: "bluecone".
	Title string
	// Environment is shown beside the title: "staging", say. Default: none.
	Environment string
	// Production gives the console the colour that asks for care. Default: false, unless
	// Environment is "prod" or "production".
	Production bool
	// Prefix is the path at which the console is mounted, if the router neither strips it nor is an
	// http.ServeMux. Default: found out from the request.
	Prefix string
	// Logger receives what went wrong. Default: slog.Default().
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	if c.Title == "" {
		c.Title = "bluecone"
	}
	if env := strings.ToLower(c.Environment); env == "prod" || env == "production" {
		c.Production = true
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// deployment is what pages read and actions change. [ops.Ops] is the one there is; tests put
// hostile texts in its place.
type deployment interface {
	Overview(ctx context.Context) (ops.Overview, error)
	Events(ctx context.Context, q ops.Query) (ops.Page[ops.Event], error)
	Event(ctx context.Context, eventID string) (ops.Event, error)
	Payload(ctx context.Context, op ops.Operation, eventID string) (ops.Payload, error)
	Trace(ctx context.Context, key string) (ops.Story, error)
	Consumers(ctx context.Context) ([]ops.Consumer, error)
	Dead(ctx context.Context) ([]ops.DeadGroup, error)
	Jobs(ctx context.Context) ([]ops.JobState, error)
	Instances(ctx context.Context) ([]ops.Instance, error)
	Brokers(ctx context.Context) (ops.Brokers, error)
	Reservations(ctx context.Context) ([]ops.Reservation, error)
	Audit(ctx context.Context, q ops.AuditQuery) (ops.Page[ops.AuditRow], error)
	Doctor(ctx context.Context) (doctor.Report, error)
	Bulks(ctx context.Context, cursor string, limit int) (ops.Page[ops.Bulk], error)
	Bulk(ctx context.Context, id string) (ops.Bulk, error)
	DryRun(ctx context.Context, b ops.NewBulk) (ops.Count, error)
	PublishableTypes() []string
	CheckManual(ctx context.Context, m ops.Manual) (ops.Published, error)

	Retry(ctx context.Context, op ops.Operation, eventID string, consumers ...string) error
	Reopen(ctx context.Context, op ops.Operation, eventID, consumer string) error
	Skip(ctx context.Context, op ops.Operation, eventID, consumer string) error
	Discard(ctx context.Context, op ops.Operation, eventID string) error
	Replay(ctx context.Context, op ops.Operation, eventID, consumer string) error
	Pause(ctx context.Context, op ops.Operation, consumer string, d time.Duration) error
	Resume(ctx context.Context, op ops.Operation, consumer string) error
	Retire(ctx context.Context, op ops.Operation, consumer string, eventTypes ...string) error
	RunJob(ctx context.Context, op ops.Operation, code string) (counts map[string]int64, ran bool, err error)
	Publish(ctx context.Context, op ops.Operation, m ops.Manual) (ops.Published, error)
	StartBulk(ctx context.Context, op ops.Operation, b ops.NewBulk) (ops.Bulk, error)
	Refused(ctx context.Context, op ops.Operation, route string) error
	CancelBulk(ctx context.Context, op ops.Operation, id string) error
	ResumeBulk(ctx context.Context, op ops.Operation, id string) error
}

// Console is the handler of pages and API. It is safe for concurrent use.
type Console struct {
	reads
	cfg    Config
	mux    *http.ServeMux
	cross  *http.CrossOriginProtection
	assets assets
	views  map[locale]func() map[string]*template.Template // per language, per page
	texts  map[string]catalog
	once   *once
	crowd  *crowd.Crowd

	attempts *attempts

	bodyTime time.Duration // a body may take to arrive
}

// New returns the console of a deployment. Mount it anywhere:
//
//	c, err := console.New(o, console.Config{Authorize: …})
//	mux.Handle("/console/", c)
func New(o *ops.Ops, cfg Config) (*Console, error) {
	if o == nil {
		return nil, errors.New("console.New: ops is nil: give it what o, err := ops.New(db, ob, ops.Config{}) returned")
	}
	return newConsole(o, cfg), nil
}

func newConsole(o deployment, cfg Config) *Console {
	c := &Console{
		reads: reads{o}, cfg: cfg.withDefaults(), mux: http.NewServeMux(), cross: http.NewCrossOriginProtection(), assets: loadAssets(),
		texts: loadCatalogs(), once: newOnce(), crowd: crowd.New(maxPrincipals), attempts: newAttempts(), bodyTime: bodyTime,
	}
	c.views = c.parse()
	c.routes()
	if cfg.Authorize == nil {
		c.cfg.Logger.Warn("console: closed: Config.Authorize is not set, so every request is answered 404")
	}
	return c
}
