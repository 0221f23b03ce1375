// Package service is the demo's second service: for what orders of the monolith come to, their users get stamps.
package service

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/dburl"
	"github.com/bluecone-go/bluecone/demo/bluecone/database"
	"github.com/bluecone-go/bluecone/demo/broker"
	"github.com/bluecone-go/bluecone/demo/cli"
	"github.com/bluecone-go/bluecone/demo/httpserver"
	"github.com/bluecone-go/bluecone/doctor"
	"github.com/bluecone-go/bluecone/migrations"
	"github.com/bluecone-go/bluecone/ops"
	"github.com/bluecone-go/bluecone/outbox"
	"github.com/bluecone-go/bluecone/relay"
	"github.com/bluecone-go/bluecone/relay/inbox"
)

const usage = `Serves one instance of the loyalty service over HTTP; several may share one database. It lands order.paid and
order.refunded from a broker, to which the monolith sends them (go run ./demo/bluecone serve --relay URL), and keeps stamps.
SIGTERM drains and exits 0, a second one exits at once.

  loyalty --dsn DSN --inbox URL [--addr HOST:PORT] [--host NAME,NAME]

DSN is sqlite:///abs/path/file.db, mysql://user:password@host:port/name or postgres://user:password@host:port/name.
`

const (
	// name is under what the service is known to the broker.
	name = "loyalty"
	// lease is short, so that what a killed instance had in flight does not wait long.
	lease = 5 * time.Second
	poll  = 200 * time.Millisecond
)

// app is one instance.
type app struct {
	outbox  *outbox.Outbox
	inbox   *inbox.Inbox
	stamps  *stamps
	runners []bus.Runner
}

// Run serves one instance until ctx ends.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	addr := fs.String("addr", "127.0.0.1:8090", "address to listen on; port 0 chooses one and prints it")
	host := fs.String("host", "", "names that requests may be for, with commas, beside localhost, IP addresses and the name in --addr")
	dsn := fs.String("dsn", "", "database (required)")
	from := fs.String("inbox", "", "broker to land events from (required): "+broker.Forms())
	if err := cli.Parse(fs, args, stdout, usage); err != nil {
		return err
	}
	if *dsn == "" || *from == "" {
		return fmt.Errorf("%w: --dsn and --inbox are required (see --help)", cli.ErrUsage)
	}
	cli.LogTo(stderr, false)
	subscriber, err := broker.NewSubscriber(*from, name)
	if err != nil {
		return fmt.Errorf("--inbox: %w", err)
	}
	defer func() { err = errors.Join(err, subscriber.Close()) }()
	db, err := dburl.Open(ctx, *dsn)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := broker.Connect(ctx, subscriber); err != nil {
		return err
	}
	a, err := assemble(ctx, db, subscriber)
	if err != nil {
		return err
	}
	o, err := ops.New(db, a.outbox, ops.Config{Personal: []string{"userId"}})
	if err != nil {
		return err
	}
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", *addr)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	_, _ = fmt.Fprintf(stdout, "loyalty listens on http://%s\n", listener.Addr())
	return httpserver.Serve(ctx, listener, a.handler(o, httpserver.HostNames(*addr, *host)), func(ctx context.Context) error {
		return bus.Run(ctx, a.runners...)
	})
}

// assemble makes the tables and the instance, unless the database is not fit.
func assemble(ctx context.Context, db *bun.DB, subscriber relay.Subscriber) (*app, error) {
	d, err := database.Of(db)
	if err != nil {
		return nil, err
	}
	a := &app{stamps: &stamps{db, d}}
	if err := migrations.Up(ctx, db); err != nil {
		return nil, err
	}
	if err := a.stamps.create(ctx); err != nil {
		return nil, err
	}
	if a.outbox, err = outbox.New(db, outbox.Config{}); err != nil {
		return nil, err
	}
	b := bus.New(db, bus.Config{})
	a.stamps.register(b)
	publisher, err := outbox.NewPublisher(a.outbox, b, outbox.PublisherConfig{Lease: lease, Poll: poll})
	if err != nil {
		return nil, err
	}
	if a.inbox, err = inbox.New(a.outbox, inbox.Config{Source: "bluecone", Map: onlyOurs}, subscriber); err != nil {
		return nil, err
	}
	a.runners = []bus.Runner{publisher, a.inbox}
	return a, doctor.Start(ctx, db, doctor.Config{Workers: 4, Accept: []string{"durability"}}, slog.Default())
}

// onlyOurs leaves out events that this service does nothing with.
func onlyOurs(_ event.Event, e inbox.Event) (inbox.Event, error) {
	if !slices.Contains([]string{paid{}.EventType(), refunded{}.EventType()}, e.Type) {
		return e, inbox.ErrIgnore
	}
	return e, nil
}
