package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/spi"
)

// Config configures a relay.
type Config struct {
	// Name is the name of the relay's consumer, and its identity in the database: see bus.Consumer. Default: "Relay".
	Name string
	// Types are the event types that go to the broker, such as "order.paid". Default: none, which is refused.
	Types []string
	// Destination says where an event goes: a topic, a subject or a routing key, as the adapter documents it. "" is the adapter's own
	// choice. It is called from several goroutines. Default: the adapter chooses.
	Destination func(bus.Envelope) string
	// Source is the CloudEvents attribute source: who says that these things have happened. Receivers know an event by source and
	// id, so it never changes. It is a URI reference. Default: "/bluecone/" and the file name of the program.
	Source string
	// Structured sends each event as one JSON document with its attributes in it, for receivers that cannot read headers.
	// Default: false, binary mode: the attributes are headers, and the body is the payload as it is stored.
	Structured bool
	// Landed lets through what an inbox has landed here, too. With a relay and an inbox on one topic such events would go round and
	// round. Default: false, they are SKIPPED.
	Landed bool
	// Consumer configures the relay's consumer: Batch is the most messages in one call of the publisher, and Batch times Concurrency the
	// most that are unconfirmed. Default: the zero value with a Batch of 128, and Replayable.
	Consumer bus.ConsumerConfig
	// MeterProvider makes the instruments relay.published and relay.confirm. Default: the global provider.
	MeterProvider metric.MeterProvider
}

func (c Config) withDefaults() Config {
	c.Name = cmp.Or(c.Name, "Relay")
	c.Source = cmp.Or(c.Source, "/bluecone/"+url.PathEscape(program()))
	c.Consumer.Batch = cmp.Or(c.Consumer.Batch, 128)
	c.Consumer.Replayable = true
	if c.MeterProvider == nil {
		c.MeterProvider = otel.GetMeterProvider()
	}
	return c
}

func program() string {
	name, err := os.Executable()
	if err != nil {
		name = os.Args[0]
	}
	return filepath.Base(name)
}

// Register makes a consumer of b that gives the events of cfg.Types to a broker, in the order of their commits within each aggregate: one
// unconfirmed event of an aggregate at a time. Its deliveries are rows of the consume log: SUCCESS when the broker has
// confirmed, tried again for as long as it is away, DEAD when it never takes the message. It returns mistakes in cfg; those
// that concern the consumer are returned by outbox.NewPublisher with all others.
func Register(b *bus.Bus, cfg Config, p Publisher) error {
	switch {
	case b == nil || p == nil:
		return errors.New("relay.Register: the bus and the publisher must not be nil: make them by bus.New and, say, kafka.NewPublisher")
	case len(cfg.Types) == 0:
		return errors.New("relay.Register: Config.Types is empty: name the event types that go to the broker, such as \"order.paid\"")
	}
	cfg = cfg.withDefaults()
	if _, err := url.Parse(cfg.Source); err != nil {
		return fmt.Errorf("relay.Register: Config.Source %q is no URI reference: write one such as /bluecone/shop", cfg.Source)
	}
	r := &relay{cfg: cfg, publisher: p, known: known{at: p}}
	if err := r.measure(); err != nil {
		return fmt.Errorf("relay.Register: %w", err)
	}
	c := b.Consumer(cfg.Name, cfg.Consumer)
	if err := spi.OnExternalBatch(b, c, cfg.Types, r.publish); err != nil {
		return fmt.Errorf("relay.Register of %q: %w", cfg.Name, err)
	}
	spi.TellBroker(b, c, r.known.tell)
	return nil
}

// relay is the handler of one relay.
type relay struct {
	cfg       Config
	publisher Publisher
	published metric.Int64Counter
	confirm   metric.Float64Histogram
	known     known
}

func (r *relay) measure() (err error) {
	meter := r.cfg.MeterProvider.Meter("github.com/bluecone-go/bluecone/relay")
	if r.published, err = meter.Int64Counter("relay.published", metric.WithDescription("messages that the broker has confirmed")); err != nil {
		return err
	}
	r.confirm, err = meter.Float64Histogram("relay.confirm", metric.WithUnit("s"),
		metric.WithDescription("how long a call of the publisher waited for the broker's confirmations"))
	return err
}

// publish gives events to the broker, but for those that may not go there.
func (r *relay) publish(ctx context.Context, events []spi.Message) []error {
	answers := make([]error, len(events))
	ms, at := make([]Message, 0, len(events)), make([]int, 0, len(events))
	for i, e := range events {
		m, err := r.message(e)
		if answers[i] = err; err == nil {
			ms, at = append(ms, m), append(at, i)
		}
	}
	if len(ms) == 0 {
		return answers
	}
	relayed, began, confirmed := attribute.String("consumer", r.cfg.Name), time.Now(), int64(0)
	r.known.began(len(ms))
	errs := r.publisher.Publish(ctx, ms)
	r.known.ended(len(ms), errs)
	r.confirm.Record(ctx, time.Since(began).Seconds(), metric.WithAttributes(relayed))
	if len(errs) != len(ms) {
		return errs // the bus says so, and has all of them again
	}
	for i, err := range errs {
		if answers[at[i]] = err; err == nil {
			confirmed++
		}
	}
	r.published.Add(ctx, confirmed, metric.WithAttributes(relayed))
	return answers
}

// message is an event as it goes to the broker, or the answer that it does not.
func (r *relay) message(e spi.Message) (Message, error) {
	if source := e.Metadata[spi.MetaOriginSource]; source != "" && !r.cfg.Landed {
		return Message{}, bus.Skip("it came from " + source + " by an inbox: it is not sent on unless relay.Config.Landed says so")
	}
	id := e.ID
	if e.Replay {
		id = uuid.NewString()
	}
	m, err := message(e.Envelope, r.cfg.Source, id, r.cfg.Structured)
	if err != nil {
		return m, bus.Permanent(err)
	}
	if e.Replay {
		m.Headers = map[string]string{ReplayOf: e.ID}
	}
	if r.cfg.Destination != nil {
		m.Destination = r.cfg.Destination(e.Envelope)
	}
	return m, nil
}
