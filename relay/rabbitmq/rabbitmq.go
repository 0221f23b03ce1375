// Package rabbitmq relays events to a topic exchange of RabbitMQ 3.10 or later, and receives them from a quorum queue.
//
//	pub, err := rabbitmq.NewPublisher("amqp://user:password@host:5672/vhost?exchange=bluecone", rabbitmq.Config{})
//
// The options of the URL are exchange, its name (bluecone by default), and create=false, by which nothing is created that is
// missing. Otherwise both ends declare a durable topic exchange and a durable quorum queue "<exchange>.inbox" with a single active
// consumer, bound with #, so that nothing is unroutable before a subscriber runs.
//
// A message is persistent and mandatory. Its routing key is the event type and the escaped id of the aggregate, such as
// "order.paid.4711"; the queue keeps the order of all, and is for one service. Another one has an exchange of its own, which an
// administrator binds to this one. Attributes of the CloudEvent are headers with the prefix "cloudEvents:".
//
// On a single node of RabbitMQ 3.10 a queue may stay without a leader after a restart ("leader not known" in its log); `rabbitmqctl
// eval 'ra:trigger_election(…)'` ends that. Run three nodes, or a newer release.
//
// RabbitMQ 4 drops a message of a quorum queue after 20 deliveries, unless a policy says otherwise. A message that cannot be
// landed is tried again without another delivery, so that it is delivered about once in ten minutes while the database is away.
// Set a policy with delivery-limit -1 there.
package rabbitmq

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/relay"
)

const (
	form            = "amqp://user:password@host:port/vhost?exchange=bluecone"
	defaultExchange = "bluecone"
	answerLimit     = 10 * time.Second // for everything that is asked of RabbitMQ
)

// Config is what the URL does not say.
type Config struct {
	// TLS is how to encrypt connections. Default: nil, they are plain.
	TLS *tls.Config
	// Logger takes what happens to connections. Default: slog.Default().
	Logger *slog.Logger
}

// target is what a URL names.
type target struct {
	server          string // the URL for the client
	broker          string // for people
	exchange, queue string
	mayCreate       bool
	tls             *tls.Config
	log             *slog.Logger
}

func parse(raw string, c Config) (target, error) {
	u, err := relay.ParseURL(raw, form, "exchange", "create")
	if err != nil {
		return target{}, err
	}
	may, err := relay.MayCreate(u)
	if err != nil {
		return target{}, err
	}
	exchange, options := defaultExchange, u.Query()
	if options.Has("exchange") {
		exchange = options.Get("exchange")
	}
	const most = 200 // of the 255 bytes that RabbitMQ takes; the queue's name is longer
	if exchange == "" || len(exchange) > most || strings.HasPrefix(exchange, "amq.") {
		return target{}, fmt.Errorf("%w: exchange=%s: its name must have 1 to %d bytes, and not begin with amq", relay.ErrURL, exchange, most)
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	server := url.URL{Scheme: "amqp", User: u.User, Host: u.Host, Path: u.Path, RawPath: u.RawPath}
	if c.TLS != nil {
		server.Scheme = "amqps"
	}
	if u.Path == "" {
		server.Path = "/"
	}
	if _, err := amqp.ParseURI(server.String()); err != nil {
		return target{}, fmt.Errorf("%w: %w: write %s", relay.ErrURL, err, form)
	}
	return target{
		server: server.String(), exchange: exchange,
		broker: fmt.Sprintf("%s://%s%s?exchange=%s", server.Scheme, server.Host, server.EscapedPath(), exchange),
		queue:  exchange + ".inbox", mayCreate: may, tls: c.TLS, log: c.Logger.With("broker", "rabbitmq", "exchange", exchange),
	}, nil
}

// Broker is the server, its virtual host and the exchange.
func (t target) Broker() string { return t.broker }

// session is one connection with one channel. Delivery tags begin anew with each, so a channel is never made again by itself.
type session struct {
	conn    *amqp.Connection
	channel *amqp.Channel
	socket  net.Conn
	closed  chan *amqp.Error // why the channel has ended
	blocked chan amqp.Blocking
}

// open connects, and declares what is missing.
func (t target) open(ctx context.Context) (*session, error) {
	s := &session{}
	opened := func() bool { return true }
	// The client writes the name of the server into what it gets.
	config := amqp.Config{TLSClientConfig: t.tls.Clone(), Heartbeat: answerLimit, Recovery: nil, Locale: "en_US"}
	config.Dial = func(network, addr string) (net.Conn, error) {
		conn, err := (&net.Dialer{Timeout: answerLimit}).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		s.socket = impatient{conn}
		opened = context.AfterFunc(ctx, func() { _ = conn.Close() })   // the handshake does not look at ctx
		return s.socket, conn.SetDeadline(time.Now().Add(answerLimit)) // until the handshake is done
	}
	var err error
	defer func() { opened() }()
	if s.conn, err = amqp.DialConfig(t.server, config); err != nil {
		return nil, classify(err)
	}
	s.blocked = s.conn.NotifyBlocked(make(chan amqp.Blocking, 16))
	if s.channel, err = s.conn.Channel(); err == nil {
		s.closed = s.channel.NotifyClose(make(chan *amqp.Error, 1))
		err = t.declare(s.channel)
	}
	if err != nil {
		s.close()
		return nil, classify(err)
	}
	return s, nil
}

// close ends the session without a word to a server that may not answer: RabbitMQ then takes back what was not acknowledged.
func (s *session) close() {
	_ = s.socket.Close() // it may have ended
	_ = s.conn.Close()   // stops the client's goroutines
}

// impatient is a connection whose writes end after a while: a server that is short of memory stops reading.
type impatient struct{ net.Conn }

// Write fails when the server has read nothing for a while.
func (c impatient) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(answerLimit)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

func (t target) declare(ch *amqp.Channel) error {
	queue := amqp.Table{"x-queue-type": "quorum", "x-single-active-consumer": true}
	if !t.mayCreate {
		if err := ch.ExchangeDeclarePassive(t.exchange, "topic", true, false, false, false, nil); err != nil {
			return err
		}
		_, err := ch.QueueDeclarePassive(t.queue, true, false, false, false, queue)
		return err
	}
	if err := ch.ExchangeDeclare(t.exchange, "topic", true, false, false, false, nil); err != nil {
		return err
	}
	if _, err := ch.QueueDeclare(t.queue, true, false, false, false, queue); err != nil {
		return err
	}
	return ch.QueueBind(t.queue, "#", t.exchange, false, nil)
}

// Connect looks once whether RabbitMQ answers, takes the credentials, and has exchange and queue: see [relay.Connection].
func (t target) Connect(ctx context.Context) error {
	s, err := t.open(ctx)
	if err == nil {
		s.close()
	}
	return err
}

// classify says what an error means for what was to be done: see [relay.Publisher].
func classify(err error) error {
	if err == nil {
		return nil
	}
	if relay.IsUntrusted(err) {
		return bus.Unavailable(fmt.Errorf("rabbitmq: %w: %w", relay.ErrRefused, err))
	}
	if answer, ok := errors.AsType[*amqp.Error](err); ok {
		switch answer.Code {
		case amqp.AccessRefused, amqp.NotFound, amqp.NotAllowed, amqp.PreconditionFailed, amqp.ResourceLocked:
			return bus.Unavailable(fmt.Errorf("rabbitmq: %w: %w", relay.ErrRefused, err))
		}
	}
	return bus.Unavailable(fmt.Errorf("rabbitmq: %w", err))
}
