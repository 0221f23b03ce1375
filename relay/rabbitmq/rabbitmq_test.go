package rabbitmq_test

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/needs"
	"github.com/bluecone-go/bluecone/internal/testbroker"
	"github.com/bluecone-go/bluecone/relay"
	"github.com/bluecone-go/bluecone/relay/rabbitmq"
	"github.com/bluecone-go/bluecone/relay/relaytest"
)

func TestMain(m *testing.M) { testbroker.Main(m) }

// server is a RabbitMQ, of which each case has an exchange of its own: it takes long to start.
type server struct {
	*testbroker.Broker
	t testing.TB
}

func (s server) Addr() string { return s.Broker.URL.Host }

func (s server) URL(addr string) string {
	u := *s.Broker.URL
	u.Host, u.RawQuery = addr, "exchange="+url.QueryEscape(s.t.Name())
	return u.String()
}

func (s server) Restart() { require.NoError(s.t, s.Broker.Restart()) }

func TestAdapter(t *testing.T) { //nolint:paralleltest // the suite counts goroutines
	broker := testbroker.Start(t, "rabbitmq")
	config := rabbitmq.Config{Logger: slog.New(slog.DiscardHandler)}
	relaytest.Run(t, relaytest.Broker{
		Start:            func(t testing.TB, _ string) relaytest.Server { return server{broker, t} },
		Publisher:        func(url string) (relaytest.Publisher, error) { return rabbitmq.NewPublisher(url, config) },
		Subscriber:       func(url string) (relaytest.Subscriber, error) { return rabbitmq.NewSubscriber(url, config) },
		TooLarge:         1<<20 + 1,
		WrongCredentials: func(url string) string { return strings.Replace(url, ":secret@", ":wrong@", 1) },
		Missing:          func(url string) string { return url + "-none&create=false" },
	})
}

func publisher(t testing.TB, rawURL string) *rabbitmq.Publisher {
	t.Helper()
	p, err := rabbitmq.NewPublisher(rawURL, rabbitmq.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

func TestURLsThatAreWrong(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		"amqps://me:secret@h:1/":               `its scheme is "amqps"`,
		"amqp://me:secret@h:port/":             "cannot be read as a URL",
		"amqp://me:secret@h:1/?exchang=x":      `the option "exchang", which is unknown: there are exchange, create`,
		"amqp://me:secret@h:1/?exchange=":      "its name must have 1 to 200 bytes",
		"amqp://me:secret@h:1/?exchange=amq.x": "and not begin with amq",
		"amqp://me:secret@h:1/?create=maybe":   "create=maybe",
	} {
		_, err := rabbitmq.NewPublisher(raw, rabbitmq.Config{})
		require.ErrorIs(t, err, relay.ErrURL, raw)
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "secret")
		_, err = rabbitmq.NewSubscriber(raw, rabbitmq.Config{})
		require.ErrorIs(t, err, relay.ErrURL, raw)
	}
}

func message(id string) relay.Message {
	return relay.Message{
		ID: id, Type: "order.paid", AggregateType: "ORDER", AggregateID: "a.1", ContentType: "application/json", Body: []byte(`{"n":1}`),
		Attributes: map[string]string{"id": id, "type": "order.paid"}, Headers: map[string]string{relay.ReplayOf: "x"},
	}
}

// Other programs read the attributes as the AMQP binding says. A message that no queue would get is not confirmed, and the next try
// binds the queue again.
func TestMessagesAreRoutedOrComeBack(t *testing.T) {
	t.Parallel()
	b := testbroker.Shared(t, "rabbitmq")
	rawURL := b.URL.String() + "?exchange=routed"
	p := publisher(t, rawURL)
	require.NoError(t, p.Publish(t.Context(), []relay.Message{message("a")})[0])

	conn, err := amqp.Dial(b.URL.String())
	require.NoError(t, err)
	defer conn.Close()
	ch, err := conn.Channel()
	require.NoError(t, err)
	deliveries, err := ch.Consume("routed.inbox", "", true, false, false, false, nil)
	require.NoError(t, err)
	d := <-deliveries
	require.Equal(t, "order.paid.a%2E1", d.RoutingKey)
	require.Equal(t, amqp.Table{"cloudEvents:id": "a", "cloudEvents:type": "order.paid", "bluecone-replay-of": "x"}, d.Headers)
	require.Equal(t, amqp.Persistent, d.DeliveryMode)
	require.Equal(t, "a", d.MessageId)

	require.NoError(t, ch.QueueUnbind("routed.inbox", "#", "routed", nil))
	err = p.Publish(t.Context(), []relay.Message{message("b")})[0]
	require.ErrorIs(t, err, relay.ErrRefused)
	require.ErrorContains(t, err, "no queue is bound")
	require.NoError(t, p.Publish(t.Context(), []relay.Message{message("b")})[0])
}

func TestAQueueOfAnotherKindIsRefused(t *testing.T) {
	t.Parallel()
	b := testbroker.Shared(t, "rabbitmq")
	conn, err := amqp.Dial(b.URL.String())
	require.NoError(t, err)
	defer conn.Close()
	ch, err := conn.Channel()
	require.NoError(t, err)
	_, err = ch.QueueDeclare("classic.inbox", true, false, false, false, nil)
	require.NoError(t, err)
	p := publisher(t, b.URL.String()+"?exchange=classic")
	require.ErrorIs(t, p.Connect(t.Context()), relay.ErrRefused)
	require.ErrorContains(t, p.Connect(t.Context()), "inequivalent arg")
	wrong, err := rabbitmq.NewPublisher(b.URL.String()+"/nowhere", rabbitmq.Config{})
	require.NoError(t, err)
	require.ErrorIs(t, wrong.Connect(t.Context()), relay.ErrRefused)
}

// sink has room, and lands by a function.
type sink func(ms []relay.Received) error

func (sink) Ready(context.Context, string) error { return nil }

func (sink) Away(error) {}

func (land sink) Land(_ context.Context, ms []relay.Received) error { return land(ms) }

// What waits in the queue lands in batches.
func TestMessagesLandTogether(t *testing.T) {
	t.Parallel()
	const messages = 1000
	rawURL := testbroker.Shared(t, "rabbitmq").URL.String() + "?exchange=together"
	all := make([]relay.Message, messages)
	for i := range all {
		all[i] = message(strconv.Itoa(i))
	}
	for _, err := range publisher(t, rawURL).Publish(t.Context(), all) {
		require.NoError(t, err)
	}
	s, err := rabbitmq.NewSubscriber(rawURL, rabbitmq.Config{})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	landed, calls := 0, 0
	require.NoError(t, s.Receive(ctx, sink(func(ms []relay.Received) error {
		if landed, calls = landed+len(ms), calls+1; landed == messages {
			cancel()
		}
		return nil
	})))
	require.Equal(t, messages, landed)
	require.Less(t, calls, messages/5)
}

func TestWhatHasNotLandedGoesBackToTheQueue(t *testing.T) {
	t.Parallel()
	rawURL := testbroker.Shared(t, "rabbitmq").URL.String() + "?exchange=back"
	require.NoError(t, publisher(t, rawURL).Publish(t.Context(), []relay.Message{message("a")})[0])
	for _, outcome := range []error{errors.New("the database is away"), nil} {
		s, err := rabbitmq.NewSubscriber(rawURL, rabbitmq.Config{Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), needs.Patience())
		var ids []string
		require.NoError(t, s.Receive(ctx, sink(func(ms []relay.Received) error {
			ids = append(ids, ms[0].Attributes["id"])
			cancel()
			return outcome
		})))
		require.Equal(t, []string{"a"}, ids)
	}
}

func TestAServerShortOfMemoryAndRotatedCredentials(t *testing.T) {
	t.Parallel()
	b := testbroker.Start(t, "rabbitmq")
	p := publisher(t, b.URL.String())
	publish := func(id string) error { return p.Publish(t.Context(), []relay.Message{message(id)})[0] }
	require.NoError(t, publish("a"))

	const alarm = "{resource_limit, memory, node()}"
	require.NoError(t, b.Eval("rabbit_alarm:set_alarm({"+alarm+", []})."))
	for range 2 { // the first finds out, within the limit for answers; the second knows
		err := publish("b")
		require.ErrorContains(t, err, "short of memory or disk")
		require.False(t, bus.IsPermanent(err))
	}
	require.NoError(t, b.Eval("rabbit_alarm:clear_alarm("+alarm+")."))
	require.Eventually(t, func() bool { return publish("b") == nil }, needs.Patience(), 10*time.Millisecond)

	require.NoError(t, b.SetPassword("changed"))
	// The first answer may be that a connection broke.
	require.Eventually(t, func() bool {
		return errors.Is(publish("c"), relay.ErrRefused)
	}, needs.Patience(), 10*time.Millisecond)
	require.NoError(t, publisher(t, b.URL.String()).Publish(t.Context(), []relay.Message{message("c")})[0])
}
