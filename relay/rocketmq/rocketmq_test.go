package rocketmq_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/needs"
	"github.com/bluecone-go/bluecone/internal/testbroker"
	"github.com/bluecone-go/bluecone/relay"
	"github.com/bluecone-go/bluecone/relay/relaytest"
	"github.com/bluecone-go/bluecone/relay/rocketmq"
)

func TestMain(m *testing.M) { testbroker.Main(m) }

// mostNames is how many topics, each with a group of its name, are there for the tests. They are created together: it takes long.
const mostNames = 20

var names atomic.Int64

// topicURL is the URL of a topic of the test's own.
func topicURL(t testing.TB, b *testbroker.Broker, address string) (rawURL, topic string) {
	t.Helper()
	n := names.Add(1)
	require.LessOrEqual(t, n, int64(mostNames))
	u := *b.URL
	topic = fmt.Sprintf("t-%d", n)
	u.Host, u.Path = address, "/"+topic
	return u.String(), topic
}

// server is a RocketMQ of which each case has a topic of its own.
type server struct {
	*testbroker.Broker
	t    testing.TB
	path string // its URL, with ADDRESS for where it is
}

func (s server) Addr() string { return s.Broker.URL.Host }

func (s server) URL(addr string) string { return strings.Replace(s.path, "ADDRESS", addr, 1) }

func (s server) Restart() { require.NoError(s.t, s.Broker.Restart()) }

// config has the group with the name of the topic, and keeps what the cases make the adapter say out of the tests' output.
func config(url string) rocketmq.Config {
	return rocketmq.Config{Group: url[strings.LastIndex(url, "/")+1:], Logger: slog.New(slog.DiscardHandler)}
}

// The suite counts goroutines, so it runs alone.
func TestAdapter(t *testing.T) {
	broker := testbroker.StartTLS(t, "rocketmq")
	var all []string
	for n := range mostNames {
		all = append(all, fmt.Sprintf("t-%d", n+1))
	}
	require.NoError(t, broker.CreateFIFO(all...))
	require.NoError(t, broker.CreateGroups(all...))
	relaytest.Run(t, relaytest.Broker{
		Start: func(t testing.TB, _ string) relaytest.Server {
			path, _ := topicURL(t, broker, "ADDRESS")
			return server{broker, t, path}
		},
		Publisher:        func(url string) (relaytest.Publisher, error) { return rocketmq.NewPublisher(url, config(url)) },
		Subscriber:       func(url string) (relaytest.Subscriber, error) { return rocketmq.NewSubscriber(url, config(url)) },
		TooLarge:         1<<20 + 1,
		WrongCredentials: func(url string) string { return strings.Replace(url, ":secret@", ":wrong@", 1) },
		Missing:          func(url string) string { return url + "-none?create=false" },
	})
	t.Run("also", func(t *testing.T) { // on the same broker, because it takes long to start
		for name, test := range map[string]func(*testing.T, *testbroker.Broker){
			"what could not be landed goes to another instance":       another,
			"a property with a control character is refused for ever": control,
			"what would lose order or messages is refused":            unsuitable,
			"messages go by TLS": secure,
		} {
			t.Run(name, func(t *testing.T) { t.Parallel(); test(t, broker) })
		}
	})
}

// A changed password would need a start of the broker, after which its proxy says for a while that there is no topic.
func secure(t *testing.T, b *testbroker.Broker) {
	url, _ := topicURL(t, b, b.SecureURL().Host)
	with := func(c *tls.Config) rocketmq.Config {
		cfg := config(url)
		cfg.TLS = c
		return cfg
	}
	relaytest.RunSecure(t, relaytest.Secure{
		URL: func() string { return url }, Roots: b.Roots(),
		Publisher: func(url string, c *tls.Config) (relaytest.Publisher, error) {
			return rocketmq.NewPublisher(url, with(c))
		},
		Subscriber: func(url string, c *tls.Config) (relaytest.Subscriber, error) {
			return rocketmq.NewSubscriber(url, with(c))
		},
	})
}

func TestURLsThatAreWrong(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		"nats://me:secret@h:1/orders":                 `its scheme is "nats"`,
		"rocketmq://me:secret@h:1/":                   `the topic is ""`,
		"rocketmq://me:secret@h:1/a.b":                "letters, digits",
		"rocketmq://me:secret@h/orders":               `it is at "h": it must be one host`,
		"rocketmq://me:secret@h:1,i:1/orders":         `it is at "h:1,i:1"`,
		"rocketmq://me:secret@h:1/orders?topic=x":     `the option "topic", which is unknown: there are create`,
		"rocketmq://me:secret@h:1/orders?create=nope": "create=nope",
	} {
		_, err := rocketmq.NewPublisher(raw, rocketmq.Config{})
		require.ErrorIs(t, err, relay.ErrURL, raw)
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "secret")
		_, err = rocketmq.NewSubscriber(raw, rocketmq.Config{})
		require.ErrorIs(t, err, relay.ErrURL, raw)
	}
}

func message(id string) relay.Message {
	return relay.Message{
		ID: id, AggregateType: "ORDER", AggregateID: "1", ContentType: "application/json", Body: []byte(`{"n":1}`),
		Attributes: map[string]string{"id": id},
	}
}

func publisher(t testing.TB, rawURL string) *rocketmq.Publisher {
	t.Helper()
	p, err := rocketmq.NewPublisher(rawURL, config(rawURL))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

// landing is a sink that says what has come, and lands it when the test says so.
type landing struct {
	came chan string
	goOn chan struct{}
	stop func()
}

func (landing) Ready(ctx context.Context, _ string) error { return ctx.Err() }

func (landing) Away(error) {}

func (l landing) Land(ctx context.Context, batch []relay.Received) error {
	var ids string
	for _, r := range batch {
		ids += r.Attributes["id"]
	}
	select {
	case l.came <- ids:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-l.goOn:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// receive receives until the test ends.
func receive(t *testing.T, rawURL string) landing {
	t.Helper()
	s, err := rocketmq.NewSubscriber(rawURL, config(rawURL))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	l, ended := landing{came: make(chan string), goOn: make(chan struct{})}, make(chan struct{})
	var failed error
	l.stop = func() {
		cancel()
		<-ended
		require.NoError(t, failed)
		require.NoError(t, s.Close())
	}
	go func() {
		defer close(ended)
		failed = s.Receive(ctx, l)
	}()
	t.Cleanup(l.stop)
	return l
}

func (l landing) next(t *testing.T) string {
	t.Helper()
	select {
	case ids := <-l.came:
		return ids
	case <-time.After(needs.Patience()):
		require.Fail(t, "nothing has come")
		return ""
	}
}

// The queue is closed to others while its messages are out, and they begin with what the first instance has not landed.
func another(t *testing.T, broker *testbroker.Broker) {
	t.Helper()
	rawURL, _ := topicURL(t, broker, broker.URL.Host)
	p, first := publisher(t, rawURL), receive(t, rawURL)
	require.NoError(t, p.Publish(t.Context(), []relay.Message{message("a")})[0])
	require.Equal(t, "a", first.next(t))
	require.NoError(t, p.Publish(t.Context(), []relay.Message{message("b")})[0])
	second := receive(t, rawURL)
	first.stop()
	require.Equal(t, "ab", second.next(t))
	close(second.goOn)
}

func control(t *testing.T, broker *testbroker.Broker) {
	t.Helper()
	rawURL, _ := topicURL(t, broker, broker.URL.Host)
	m := message("a")
	m.Attributes["subject"] = "a\nb"
	require.True(t, bus.IsPermanent(publisher(t, rawURL).Publish(t.Context(), []relay.Message{m})[0]))
}

func unsuitable(t *testing.T, broker *testbroker.Broker) {
	t.Helper()
	rawURL, _ := topicURL(t, broker, broker.URL.Host)
	require.NoError(t, broker.Admin("updateSubGroup", "-g", "few", "-o", "true", "-r", "16"))
	for group, want := range map[string]string{
		"none": "updateSubGroup -n NAMESERVER:9876 -c CLUSTER -g none -o true -r 1000000",
		"few":  "the group few gives a message up after 17 deliveries",
	} {
		s, err := rocketmq.NewSubscriber(rawURL, rocketmq.Config{Group: group})
		require.NoError(t, err)
		require.ErrorIs(t, s.Connect(t.Context()), relay.ErrRefused)
		require.ErrorContains(t, s.Connect(t.Context()), want)
		require.ErrorIs(t, s.Receive(t.Context(), landing{}), relay.ErrRefused)
	}
	require.NoError(t, broker.Admin("updateTopic", "-t", "normal", "-a", "+message.type=NORMAL"))
	p := publisher(t, rawURL[:strings.LastIndex(rawURL, "/")]+"/normal")
	require.ErrorContains(t, p.Connect(t.Context()), "it is not FIFO")
	require.ErrorIs(t, p.Publish(t.Context(), []relay.Message{message("a")})[0], relay.ErrRefused)
}
