package nats_test

import (
	"context"
	"log/slog"
	"net/url"
	"strings"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/testbroker"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/relay"
	"github.com/bluecone-go/bluecone/relay/nats"
	"github.com/bluecone-go/bluecone/relay/relaytest"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// quiet keeps what the cases make the adapter say out of the tests' output.
func quiet() nats.Config { return nats.Config{Logger: slog.New(slog.DiscardHandler)} }

// server is a private NATS for the suite.
type server struct {
	*testbroker.Broker
	t testing.TB
}

func (s server) Addr() string { return s.Broker.URL.Host }

func (s server) URL(addr string) string {
	u := *s.Broker.URL
	u.Host, u.Path = addr, "/TESTED"
	return u.String()
}

func (s server) Restart() { require.NoError(s.t, s.Broker.Restart()) }

func start(t testing.TB, _ string) relaytest.Server { return server{testbroker.Start(t, "nats"), t} }

func TestConformance(t *testing.T) { //nolint:paralleltest // it counts goroutines
	relaytest.Run(t, relaytest.Broker{
		Start:      start,
		Publisher:  func(url string) (relaytest.Publisher, error) { return nats.NewPublisher(url, quiet()) },
		Subscriber: func(url string) (relaytest.Subscriber, error) { return nats.NewSubscriber(url, quiet()) },
		TooLarge:   2 << 20, // max_payload is 1 MB
		WrongCredentials: func(raw string) string {
			u, err := url.Parse(raw)
			require.NoError(t, err)
			u.User = url.UserPassword(u.User.Username(), "wrong")
			return u.String()
		},
		Missing:       func(url string) string { return strings.Replace(url, "/TESTED", "/NONE?create=false", 1) },
		DropsRepeated: true,
	})
}

func TestWrongURLs(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"nats://h:1":                  `the stream is ""`,
		"nats://h:1/no.name":          "letters, digits",
		"kafka://h:1/S":               `its scheme is "kafka"`,
		"nats://h:1/S?stream=x":       "which is unknown",
		"nats://h:1/S?create=perhaps": "it is true or false",
	} {
		_, err := nats.NewPublisher(url, nats.Config{})
		require.ErrorIs(t, err, relay.ErrURL)
		require.ErrorContains(t, err, want)
		_, err = nats.NewSubscriber(url, nats.Config{})
		require.ErrorIs(t, err, relay.ErrURL)
	}
	_, err := nats.NewPublisher("tls://h:1/S", nats.Config{})
	require.NoError(t, err)
	_, err = nats.NewSubscriber("nats://h:1/S", nats.Config{Durable: "no name", Timeout: -1})
	require.ErrorContains(t, err, "Config.Durable")
}

// A stream that is deleted meanwhile is no reason to lose what is to be published: it waits, and the stream is made again.
func TestADeletedStreamIsMadeAgain(t *testing.T) {
	t.Parallel()
	s := server{testbroker.Start(t, "nats"), t}
	nc, err := natsgo.Connect(s.Broker.URL.String())
	require.NoError(t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	p, err := nats.NewPublisher(s.URL(s.Addr()), quiet())
	require.NoError(t, err)
	defer func() { require.NoError(t, p.Close()) }()
	m := relay.Message{
		ID: "1", Type: "order.paid", AggregateType: "ORDER", AggregateID: "7.8 *", Body: []byte("{}"), ContentType: "application/json",
	}
	require.Equal(t, []error{nil}, p.Publish(t.Context(), []relay.Message{m}))
	requireSubject(t.Context(), t, js, "TESTED.ORDER.7%2E8%20%2A")
	require.NoError(t, js.DeleteStream(t.Context(), "TESTED"))
	require.ErrorIs(t, p.Publish(t.Context(), []relay.Message{m})[0], relay.ErrRefused)
	require.Equal(t, []error{nil}, p.Publish(t.Context(), []relay.Message{m}))
	requireSubject(t.Context(), t, js, "TESTED.ORDER.7%2E8%20%2A")
}

func requireSubject(ctx context.Context, t *testing.T, js jetstream.JetStream, subject string) {
	t.Helper()
	stream, err := js.Stream(ctx, "TESTED")
	require.NoError(t, err)
	msg, err := stream.GetMsg(ctx, 1)
	require.NoError(t, err)
	require.Equal(t, subject, msg.Subject)
}

// Settings of a stream that lose messages are found; those of the stream that the adapter makes are none.
func TestSettingsThatLoseMessagesAreFound(t *testing.T) {
	t.Parallel()
	s := server{testbroker.Start(t, "nats"), t}
	nc, err := natsgo.Connect(s.Broker.URL.String())
	require.NoError(t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "LOSES", Subjects: []string{"LOSES.>"}, Storage: jetstream.MemoryStorage, MaxAge: time.Hour, MaxMsgs: 7, MaxBytes: 1000,
		MaxMsgsPerSubject: 3,
	})
	require.NoError(t, err)
	for stream, want := range map[string][]string{
		"KEEPS": nil, "LOSES": {"in memory", "max_age is 1h0m0s", "max_msgs is 7", "max_bytes is 1000", "max_msgs_per_subject is 3"},
	} {
		p, err := nats.NewPublisher(s.Broker.URL.JoinPath(stream).String(), quiet())
		require.NoError(t, err)
		found, err := p.Examine(t.Context())
		require.NoError(t, err)
		require.Len(t, found, len(want))
		for i, w := range want {
			require.Contains(t, found[i], w)
		}
		require.NoError(t, p.Close())
	}
}
