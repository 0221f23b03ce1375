package redis_test

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/needs"
	"github.com/bluecone-go/bluecone/internal/testbroker"
	"github.com/bluecone-go/bluecone/relay"
	"github.com/bluecone-go/bluecone/relay/redis"
	"github.com/bluecone-go/bluecone/relay/relaytest"
)

func TestMain(m *testing.M) { testbroker.Main(m) }

const mostBody = 1 << 20

var streams atomic.Int64

// server is a Redis of which each case has a stream of its own.
type server struct {
	*testbroker.Broker
	t testing.TB
}

func (s server) Addr() string { return s.Broker.URL.Host }

func (s server) URL(addr string) string {
	u := *s.Broker.URL
	u.Host, u.Path, u.RawQuery = addr, "/0", "stream="+url.QueryEscape("of "+s.t.Name())
	return u.String()
}

func (s server) Restart() { require.NoError(s.t, s.Broker.Restart()) }

func adapter() relaytest.Broker {
	config := redis.Config{Logger: slog.New(slog.DiscardHandler)}
	return relaytest.Broker{
		Start: func(t testing.TB, _ string) relaytest.Server {
			s := server{testbroker.Start(t, "redis"), t}
			admin(t, s.Broker).ConfigSet(t.Context(), "proto-max-bulk-len", strconv.Itoa(mostBody))
			return s
		},
		Publisher:  func(url string) (relaytest.Publisher, error) { return redis.NewPublisher(url, config) },
		Subscriber: func(url string) (relaytest.Subscriber, error) { return redis.NewSubscriber(url, config) },
		TooLarge:   mostBody + 1,
		WrongCredentials: func(url string) string {
			return strings.Replace(url, ":secret@", ":wrong@", 1)
		},
		Leave: map[string]string{
			"a cut between commit and acknowledgement loses nothing": "an acknowledgement may go by another connection: " +
				"TestWhatCouldNotBeAcknowledgedComesAgain kills the server then",
		},
		Missing: func(url string) string { return url + "-none&create=false" },
	}
}

func TestAdapter(t *testing.T) { //nolint:paralleltest // the suite counts goroutines
	relaytest.Run(t, adapter())
}

// admin is a client of the test's own.
func admin(t testing.TB, b *testbroker.Broker) *goredis.Client {
	t.Helper()
	password, _ := b.URL.User.Password()
	c := goredis.NewClient(&goredis.Options{Addr: b.URL.Host, Username: b.URL.User.Username(), Password: password, Protocol: 2})
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// streamURL is the URL of a stream of the test's own on a shared Redis.
func streamURL(t testing.TB, options string) (rawURL, stream string) {
	t.Helper()
	u := *testbroker.Shared(t, "redis").URL
	stream = "s" + strconv.FormatInt(streams.Add(1), 10)
	u.Path, u.RawQuery = "/0", "stream="+stream+options
	return u.String(), stream
}

func publisher(t testing.TB, rawURL string) *redis.Publisher {
	t.Helper()
	p, err := redis.NewPublisher(rawURL, redis.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

func TestURLsThatAreWrong(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		"kafka://me:secret@h:1/0":               `its scheme is "kafka"`,
		"redis://me:secret@h:1/orders":          `the path "/orders" is not the number of a database`,
		"redis://me:secret@h:1/-1":              "is not the number of a database",
		"redis://me:secret@h:1/0?steam=x":       `the option "steam", which is unknown: there are stream, create, wait`,
		"redis://me:secret@h:1/0?stream=":       "its name must have 1 to 200 bytes",
		"redis://me:secret@h:1/0?wait=all":      "wait=all: it is a number of replicas",
		"redis://me:secret@h:1/0?create=maybe":  "create=maybe",
		"redis://me:sec%ret@h:1/0?create=false": "cannot be read as a URL",
	} {
		_, err := redis.NewPublisher(raw, redis.Config{})
		require.ErrorIs(t, err, relay.ErrURL, raw)
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "sec")
		_, err = redis.NewSubscriber(raw, redis.Config{})
		require.ErrorIs(t, err, relay.ErrURL, raw)
	}
}

func message(id string) relay.Message {
	return relay.Message{
		ID: id, Type: "order.paid", AggregateType: "ORDER", AggregateID: "1", ContentType: "application/json", Body: []byte(`{"n":1}`),
		Attributes: map[string]string{"id": id, "type": "order.paid"}, Headers: map[string]string{relay.ReplayOf: "x"},
	}
}

// The binding is plain: other programs read the fields by the names of the attributes.
func TestFieldsOfAnEntryHaveTheNamesOfTheAttributes(t *testing.T) {
	t.Parallel()
	rawURL, stream := streamURL(t, "")
	require.NoError(t, publisher(t, rawURL).Publish(t.Context(), []relay.Message{message("a")})[0])
	entries, err := admin(t, testbroker.Shared(t, "redis")).XRange(t.Context(), stream, "-", "+").Result()
	require.NoError(t, err)
	require.Len(t, entries, 1)
	require.Equal(t, map[string]any{
		"id": "a", "type": "order.paid", "bluecone-replay-of": "x", "datacontenttype": "application/json", "data": `{"n":1}`,
	}, entries[0].Values)
}

func TestWithoutEnoughReplicasNothingIsConfirmed(t *testing.T) {
	t.Parallel()
	rawURL, _ := streamURL(t, "&wait=1")
	err := publisher(t, rawURL).Publish(t.Context(), []relay.Message{message("a")})[0]
	require.ErrorContains(t, err, "0 replicas have the message")
	require.False(t, bus.IsPermanent(err))
}

func TestWhatAPersonHasToMendIsSaid(t *testing.T) {
	t.Parallel()
	rawURL, stream := streamURL(t, "")
	require.NoError(t, admin(t, testbroker.Shared(t, "redis")).Set(t.Context(), stream, "x", 0).Err())
	p := publisher(t, rawURL)
	require.ErrorIs(t, p.Connect(t.Context()), relay.ErrRefused)
	require.ErrorContains(t, p.Connect(t.Context()), "is a string and not a stream")
	require.ErrorIs(t, p.Publish(t.Context(), []relay.Message{message("a")})[0], relay.ErrRefused)
}

// landing is a sink that says what has landed, and goes on when the test does.
type landing struct {
	landed chan []relay.Received
	goOn   chan struct{}
}

func (landing) Ready(ctx context.Context, _ string) error { return ctx.Err() }

func (landing) Away(error) {}

func (l landing) Land(ctx context.Context, batch []relay.Received) error {
	select {
	case l.landed <- batch:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-l.goOn:
	case <-ctx.Done():
	}
	return ctx.Err()
}

// receive receives until the test ends.
func receive(t *testing.T, rawURL string) landing {
	t.Helper()
	s, err := redis.NewSubscriber(rawURL, redis.Config{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	l, ended := landing{make(chan []relay.Received), make(chan struct{})}, make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { ended <- s.Receive(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
		require.NoError(t, s.Close())
	})
	return l
}

// next is what lands next, and is acknowledged after before has run.
func (l landing) next(t *testing.T, before ...func()) (ids []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), needs.Patience())
	defer cancel()
	select {
	case batch := <-l.landed:
		for _, r := range batch {
			ids = append(ids, r.Attributes["id"])
		}
		for _, fn := range before {
			fn()
		}
		l.goOn <- struct{}{}
	case <-ctx.Done():
		require.Fail(t, "nothing has landed")
	}
	return ids
}

func TestARemovedGroupIsCreatedAgain(t *testing.T) {
	t.Parallel()
	rawURL, stream := streamURL(t, "")
	l, p := receive(t, rawURL), publisher(t, rawURL)
	require.NoError(t, p.Publish(t.Context(), []relay.Message{message("a")})[0])
	require.Equal(t, []string{"a"}, l.next(t))
	require.NoError(t, admin(t, testbroker.Shared(t, "redis")).XGroupDestroy(t.Context(), stream, "bluecone").Err())
	require.Equal(t, []string{"a"}, l.next(t), "it starts with the first entry again")
	require.NoError(t, p.Publish(t.Context(), []relay.Message{message("b")})[0])
	require.Equal(t, []string{"b"}, l.next(t))
}

// What a connection that is gone has fetched is pending, also if Redis carries the fetch out late: it comes before all later ones.
func TestWhatAnotherConnectionHasFetchedComesFirst(t *testing.T) {
	t.Parallel()
	rawURL, stream := streamURL(t, "")
	p, other := publisher(t, rawURL), admin(t, testbroker.Shared(t, "redis"))
	require.NoError(t, other.XGroupCreateMkStream(t.Context(), stream, "bluecone", "0").Err())
	require.NoError(t, p.Publish(t.Context(), []relay.Message{message("a")})[0])
	require.NoError(t, other.XReadGroup(t.Context(), &goredis.XReadGroupArgs{
		Group: "bluecone", Consumer: "gone", Streams: []string{stream, ">"},
	}).Err())
	require.NoError(t, p.Publish(t.Context(), []relay.Message{message("b")})[0])
	require.Equal(t, []string{"a", "b"}, receive(t, rawURL).next(t))
}

func TestWhatCouldNotBeAcknowledgedComesAgain(t *testing.T) {
	t.Parallel()
	b := testbroker.Start(t, "redis")
	l, p := receive(t, b.URL.String()), publisher(t, b.URL.String())
	require.NoError(t, p.Publish(t.Context(), []relay.Message{message("a")})[0])
	require.Equal(t, []string{"a"}, l.next(t, b.Kill))
	require.NoError(t, b.Restart())
	require.NoError(t, publisher(t, b.URL.String()).Publish(t.Context(), []relay.Message{message("b")})[0])
	again := l.next(t)
	if len(again) == 1 {
		again = append(again, l.next(t)...)
	}
	require.Equal(t, []string{"a", "b"}, again)
}

func TestRotatedCredentialsAreRefusedUntilTheyAreRight(t *testing.T) {
	t.Parallel()
	b := testbroker.Start(t, "redis")
	p := publisher(t, b.URL.String())
	require.NoError(t, p.Publish(t.Context(), []relay.Message{message("a")})[0])
	require.NoError(t, b.SetPassword("changed"))
	// The first answer may be that a connection broke.
	require.Eventually(t, func() bool {
		return errors.Is(p.Publish(t.Context(), []relay.Message{message("b")})[0], relay.ErrRefused)
	}, needs.Patience(), 10*time.Millisecond)
	require.NoError(t, publisher(t, b.URL.String()).Publish(t.Context(), []relay.Message{message("b")})[0])
}

func TestSettingsThatLoseMessagesAreFound(t *testing.T) {
	t.Parallel()
	b := testbroker.Start(t, "redis")
	p := publisher(t, b.URL.String())
	found, err := p.Examine(t.Context())
	require.NoError(t, err)
	require.Empty(t, found)
	for name, value := range map[string]string{"appendfsync": "everysec", "maxmemory-policy": "allkeys-lru"} {
		require.NoError(t, admin(t, b).ConfigSet(t.Context(), name, value).Err())
	}
	found, err = p.Examine(t.Context())
	require.NoError(t, err)
	require.Len(t, found, 2)
	require.Contains(t, found[0], "appendfsync is everysec, not always")
}
