package kafka_test

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/testbroker"
	"github.com/bluecone-go/bluecone/relay/kafka"
	"github.com/bluecone-go/bluecone/relay/relaytest"
)

func TestMain(m *testing.M) { testbroker.Main(m) }

// quiet keeps what the cases make the adapter say out of the tests' output.
func quiet() kafka.Config { return kafka.Config{Logger: slog.New(slog.DiscardHandler)} }

var topics atomic.Int64

// topicURL is the URL of a topic of the test's own.
func topicURL(b *testbroker.Broker, address string) (rawURL, topic string) {
	u := *b.URL
	topic = fmt.Sprintf("t-%d", topics.Add(1))
	u.Host, u.Path = address, "/"+topic
	return u.String(), topic
}

// server is a Kafka of which each case has a topic of its own: it takes long to start.
type server struct {
	*testbroker.Broker
	t    testing.TB
	path string // its URL, with ADDRESS for where it is
}

func (s server) Addr() string { return s.Broker.URL.Host }

func (s server) URL(addr string) string { return strings.Replace(s.path, "ADDRESS", addr, 1) }

func (s server) Restart() { require.NoError(s.t, s.Broker.Restart()) }

func TestAdapter(t *testing.T) { //nolint:paralleltest // the suite counts goroutines
	g := newGate(t)
	broker := testbroker.StartBehind(t, "kafka", g.listener.Addr().String())
	relaytest.Run(t, relaytest.Broker{
		Start: func(t testing.TB, front string) relaytest.Server {
			g.lead(front)
			path, _ := topicURL(broker, "ADDRESS")
			return server{broker, t, path}
		},
		Publisher:        func(url string) (relaytest.Publisher, error) { return kafka.NewPublisher(url, quiet()) },
		Subscriber:       func(url string) (relaytest.Subscriber, error) { return kafka.NewSubscriber(url, quiet()) },
		TooLarge:         1<<20 + 1,
		WrongCredentials: func(url string) string { return strings.Replace(url, ":secret@", ":wrong@", 1) },
		Missing:          func(url string) string { return url + "-none?create=false" },
		Leave: map[string]string{
			"a cut between commit and acknowledgement loses nothing": "the client commits the offset by another connection: " +
				"TestWhatWasNotCommittedComesAgain kills the server then",
		},
	})
}

// gate is where the broker says that it is: an address that leads to the proxy of one case after the other.
type gate struct {
	listener net.Listener
	wg       sync.WaitGroup
	target   atomic.Value
}

func newGate(t testing.TB) *gate {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	g := &gate{listener: listener}
	g.wg.Go(g.accept)
	t.Cleanup(func() {
		_ = listener.Close() // the test has ended
		g.wg.Wait()
	})
	return g
}

func (g *gate) lead(to string) { g.target.Store(to) }

func (g *gate) accept() {
	for {
		client, err := g.listener.Accept()
		if err != nil {
			return
		}
		to, _ := g.target.Load().(string)
		server, err := new(net.Dialer).Dial("tcp", to)
		if err != nil {
			_ = client.Close() // as if nobody listened
			continue
		}
		for _, way := range [][2]net.Conn{{client, server}, {server, client}} {
			g.wg.Go(func() {
				_, _ = io.Copy(way[0], way[1]) // until one of them ends
				_, _ = way[0].Close(), way[1].Close()
			})
		}
	}
}
