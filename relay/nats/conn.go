package nats

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/bluecone-go/bluecone/relay"
)

// conn is a connection to the server, made when it is needed. The client makes a broken one again by itself, for ever.
type conn struct {
	url       *url.URL
	stream    string
	mayCreate bool
	cfg       Config

	mu     sync.Mutex
	nc     *nats.Conn // nil without one
	js     jetstream.JetStream
	found  bool          // the stream is there
	down   chan struct{} // closed when nc is disconnected
	closed bool
}

var errClosed = errors.New("nats: it was closed")

// Connect looks whether the server takes us, and whether the stream is there, and creates it if it may.
func (c *conn) Connect(ctx context.Context) error {
	_, _, err := c.open(ctx)
	return err
}

// Broker is the server and the stream.
func (c *conn) Broker() string { return c.url.Scheme + "://" + c.url.Host + "/" + c.stream }

// Close ends the connection.
func (c *conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.nc != nil {
		c.nc.Close()
	}
	return nil
}

// open returns the connection once the stream is there, and a channel that is closed when the connection breaks.
func (c *conn) open(ctx context.Context) (jetstream.JetStream, <-chan struct{}, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, nil, errClosed
	}
	if err := c.dial(ctx); err != nil {
		return nil, nil, err
	}
	if !c.nc.IsConnected() {
		if err := c.nc.LastError(); err != nil { // such as that the password has changed
			return nil, nil, refusal(fmt.Errorf("nats: not connected to %s: %w", c.url.Host, err))
		}
		return nil, nil, fmt.Errorf("nats: not connected to %s", c.url.Host)
	}
	if !c.found {
		if err := c.find(ctx); err != nil {
			return nil, nil, err
		}
		c.found = true
	}
	return c.js, c.down, nil
}

// dial needs c.mu.
func (c *conn) dial(ctx context.Context) error {
	if c.nc != nil && !c.nc.IsClosed() {
		return nil
	}
	timeout := c.cfg.Timeout
	if deadline, ok := ctx.Deadline(); ok {
		timeout = max(min(timeout, time.Until(deadline)), time.Millisecond)
	}
	options := []nats.Option{
		nats.Name("bluecone"), nats.Timeout(timeout), nats.MaxReconnects(-1), nats.ReconnectBufSize(-1), nats.IgnoreAuthErrorAbort(),
		nats.CustomReconnectDelay(func(tries int) time.Duration { return min(time.Duration(tries)*100*time.Millisecond, 2*time.Second) }),
		nats.PingInterval(10 * time.Second), nats.MaxPingsOutstanding(2),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) { c.disconnected(err) }),
		nats.ReconnectHandler(func(*nats.Conn) { c.reconnected() }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			c.cfg.Logger.WarnContext(context.Background(), "nats", "stream", c.stream, "error", err)
		}),
	}
	if c.cfg.TLS != nil {
		options = append(options, nats.Secure(c.cfg.TLS))
	}
	nc, err := nats.Connect(c.url.String(), options...)
	if err != nil {
		return refusal(fmt.Errorf("nats: connect to %s: %w", c.url.Host, err))
	}
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(c.cfg.Timeout))
	if err != nil {
		nc.Close()
		return err
	}
	c.nc, c.js, c.down, c.found = nc, js, make(chan struct{}), false
	return nil
}

func (c *conn) disconnected(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.down != nil {
		close(c.down)
		c.down = nil
	}
	if !c.closed {
		c.cfg.Logger.Warn("nats: the server is away; it is looked for", "stream", c.stream, "server", c.url.Host, "error", err)
	}
}

func (c *conn) reconnected() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.down, c.found = make(chan struct{}), false
	c.cfg.Logger.Info("nats: the server is back", "stream", c.stream, "server", c.url.Host)
}

// find makes sure that the stream is there. It needs c.mu.
func (c *conn) find(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	_, err := c.js.Stream(ctx, c.stream)
	if !errors.Is(err, jetstream.ErrStreamNotFound) {
		return refusal(wrap("look for the stream", c.stream, err))
	}
	if !c.mayCreate {
		return fmt.Errorf("%w: nats: there is no stream %s, and create=false: make it, such as by nats stream add %s --subjects '%s.>'",
			relay.ErrRefused, c.stream, c.stream, c.stream)
	}
	_, err = c.js.CreateStream(ctx, jetstream.StreamConfig{
		Name: c.stream, Subjects: []string{c.stream + ".>"}, Storage: jetstream.FileStorage, Description: "events of bluecone",
	})
	if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // the other side was faster
		return nil
	}
	return refusal(wrap("create the stream", c.stream, err))
}

// forget has the stream looked for again: it was not there.
func (c *conn) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.found = false
}

func wrap(doing, stream string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("nats: %s %s: %w", doing, stream, err)
}

// refusal marks an error that stays until a person fixes it.
func refusal(err error) error {
	for _, stays := range []error{
		nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrAuthRevoked, nats.ErrAccountAuthExpired, nats.ErrPermissionViolation,
		jetstream.ErrJetStreamNotEnabled, jetstream.ErrJetStreamNotEnabledForAccount, nats.ErrSecureConnRequired, nats.ErrSecureConnWanted,
	} {
		if errors.Is(err, stays) {
			return fmt.Errorf("%w: %w", relay.ErrRefused, err)
		}
	}
	if relay.IsUntrusted(err) {
		return fmt.Errorf("%w: %w", relay.ErrRefused, err)
	}
	return err
}
