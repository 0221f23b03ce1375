// Package inbox lands what comes from a message broker as events of an outbox, from where the engine delivers them: once to each
// consumer, in order, with retry, DEAD and the console, like events that were saved here.
//
// Everything is committed before the broker is told: a crash in between makes it come again, and an event that is known by its id is
// counted and not landed twice. No handler runs while the broker waits. What cannot be read lands too, as an event of
// the type [Undecodable] that is DEAD, with its headers and its body, and stops nothing.
package inbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/spi"
	"github.com/bluecone-go/bluecone/outbox"
	"github.com/bluecone-go/bluecone/relay"
)

// Undecodable is the type of the events as which messages land that cannot be read: "inbox.undecodable".
const Undecodable = spi.Undecodable

// ErrIgnore is what [Config.Map] answers for a message that does not concern this service: it is acknowledged, and does not land.
var ErrIgnore = errors.New("the message does not concern this service")

// Config configures an [Inbox].
type Config struct {
	// Source names where the messages come from, such as "shop": origin and counts are stored under it, so it never changes, and each
	// inbox of a database has one of its own. Letters, digits, "_", "." and "-", at most 100. Default: "inbox".
	Source string
	// Map says as what a message lands. It gets the CloudEvent and what the inbox has made of it, and may change that. Its error
	// makes the message undecodable; [ErrIgnore] leaves it out. It is called from several goroutines. Default: all land as they are.
	Map func(ce event.Event, e Event) (Event, error)
	// ID makes the event_id of a message without an id, at most 64 bytes, the same for each redelivery; "" leaves it to the
	// inbox. Default: one of Source, topic, partition, offset and time; where the broker has no offsets, a new one, so that a redelivery lands
	// again.
	ID func(r relay.Received) string
	// AcceptReplays lands what an operator has had sent again as an event of its own, so that its consumers run again. Default:
	// false, it is a duplicate.
	AcceptReplays bool
	// Open is how many events of the database may be neither done nor DEAD before fetching pauses. Default: 10,000.
	Open int
	// Logger receives one line per trouble, never a payload. Default: slog.Default().
	Logger *slog.Logger
	// MeterProvider makes the instruments inbox.landed, inbox.duplicates, inbox.undecodable, and inbox.lag where the broker tells it: how
	// many messages wait there, the same in every instance. Default: the global provider.
	MeterProvider metric.MeterProvider
}

// Event is what a message lands as.
type Event struct {
	ID, Type                   string // event_id and event_type
	AggregateType, AggregateID string
	TenantID, StoreID          int64  // 0 for none
	SchemaVersion              int    // at least 1
	Payload                    []byte // JSON
	Metadata                   bus.Metadata
}

// Inbox lands what a subscriber receives. It is a bus.Runner.
type Inbox struct {
	cfg        Config
	land       spi.Landing
	subscriber relay.Subscriber
	metrics    metrics
	known      known

	mu      sync.Mutex
	owned   map[string]bool // partitions that this instance has to have for itself
	counted time.Time       // when it was last found that there is room
}

type metrics struct {
	landed, duplicates, undecodable metric.Int64Counter
	lag                             metric.Int64Gauge
}

// New returns an inbox that lands into ob what s receives. It connects to nothing. All mistakes in cfg are returned at once.
func New(ob *outbox.Outbox, cfg Config, s relay.Subscriber) (*Inbox, error) {
	if ob == nil || s == nil {
		return nil, errors.New("inbox.New: the outbox and the subscriber must not be nil: make them by outbox.New and, say, kafka.NewSubscriber")
	}
	cfg.Source = cmp.Or(cfg.Source, "inbox")
	cfg.Open = cmp.Or(cfg.Open, defaultOpen)
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.MeterProvider == nil {
		cfg.MeterProvider = otel.GetMeterProvider()
	}
	var errs []error
	if cfg.Open < 0 {
		errs = append(errs, fmt.Errorf("inbox.Config.Open is %d: it must not be negative (0 means %d)", cfg.Open, defaultOpen))
	}
	if !isName(cfg.Source) {
		errs = append(errs, fmt.Errorf("inbox.Config.Source is %q: it must be a letter, then letters, digits, \"_\", \".\" or \"-\", "+
			"at most 100, "+
			"such as \"shop\"", cfg.Source))
	}
	in := &Inbox{cfg: cfg, land: spi.LandingOf(ob), subscriber: s, owned: make(map[string]bool)}
	errs = append(errs, in.metrics.make(cfg.MeterProvider))
	return in, errors.Join(errs...)
}

func isName(s string) bool {
	for i, r := range s {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
		if !letter && (i == 0 || (r < '0' || r > '9') && r != '_' && r != '.' && r != '-') {
			return false
		}
	}
	return s != "" && len(s) <= 100
}

func (m *metrics) make(p metric.MeterProvider) (err error) {
	meter, errs := p.Meter("github.com/bluecone-go/bluecone/relay/inbox"), make([]error, 4)
	m.landed, errs[0] = meter.Int64Counter("inbox.landed", metric.WithDescription("messages that landed as events"))
	m.duplicates, errs[1] = meter.Int64Counter("inbox.duplicates", metric.WithDescription("messages whose events were known"))
	m.undecodable, errs[2] = meter.Int64Counter("inbox.undecodable",
		metric.WithDescription("messages that landed as DEAD because they cannot be read"))
	m.lag, errs[3] = meter.Int64Gauge("inbox.lag", metric.WithDescription("messages that the broker has and that have not landed"))
	return errors.Join(errs...)
}

// Run receives and lands until ctx ends; then it gives its partitions to other instances and returns nil. It waits for a broker or a
// database that is away. It returns an error if the broker refuses it at the start: see relay.ErrRefused.
func (in *Inbox) Run(ctx context.Context) error {
	err := in.receive(ctx)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := in.land.Release(ctx, in.cfg.Source); err != nil {
		in.cfg.Logger.WarnContext(ctx, "inbox: its partitions could not be given back; others wait until their time is over", "error", err)
	}
	if err != nil {
		return fmt.Errorf("inbox %s: %w", in.cfg.Source, err)
	}
	return nil
}

// receive receives, and tells what is known of the broker beside.
func (in *Inbox) receive(ctx context.Context) error {
	beside, end := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer end()
	wg.Go(func() { in.land.Tell(beside, in.tell) })
	wg.Go(func() { in.landAgain(beside) })
	return in.subscriber.Receive(ctx, sink{in})
}

// Counts are what all instances of an inbox have landed since it was first used. They outlive retention.
type Counts struct {
	Landed      int `json:"landed"`      // messages that became events, undecodable ones too
	Duplicates  int `json:"duplicates"`  // messages whose events were known
	Undecodable int `json:"undecodable"` // those that are DEAD because they cannot be read
}

// Counts asks the database what has landed.
func (in *Inbox) Counts(ctx context.Context) (Counts, error) {
	c, err := in.land.Counts(ctx, in.cfg.Source)
	return Counts(c), err
}
