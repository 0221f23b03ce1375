package kafka_test

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/needs"
	"github.com/bluecone-go/bluecone/internal/testbroker"
	"github.com/bluecone-go/bluecone/relay"
	"github.com/bluecone-go/bluecone/relay/kafka"
)

func TestURLsThatAreWrong(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		"nats://me:secret@h:1/orders":              `its scheme is "nats"`,
		"kafka://me:secret@h:1/":                   `the topic is ""`,
		"kafka://me:secret@h:1/a/b":                "letters, digits",
		"kafka://me:secret@h:1/orders?topic=x":     `the option "topic", which is unknown: there are create`,
		"kafka://me:secret@h:1/orders?create=nope": "create=nope",
		"kafka://me:secret@h:1,h:port/orders":      "cannot be read as a URL",
		"kafka://me:secret@h:port,h:1/orders":      "invalid",
	} {
		_, err := kafka.NewPublisher(raw, kafka.Config{})
		require.ErrorIs(t, err, relay.ErrURL, raw)
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "secret")
		_, err = kafka.NewSubscriber(raw, kafka.Config{})
		require.ErrorIs(t, err, relay.ErrURL, raw)
	}
	_, err := kafka.NewSubscriber("kafka://h1,h2:9093/orders", kafka.Config{})
	require.NoError(t, err)
}

func message(id string) relay.Message {
	return relay.Message{
		ID: id, Type: "order.paid", TenantID: 7, AggregateType: "ORDER", AggregateID: "1",
		ContentType: "application/json", Body: []byte(`{"n":1}`),
		Attributes: map[string]string{"id": id}, Headers: map[string]string{relay.ReplayOf: "x"},
	}
}

// admin is a client of the test's own.
func admin(t testing.TB, b *testbroker.Broker, more ...kgo.Opt) (*kgo.Client, *kadm.Client) {
	t.Helper()
	password, _ := b.URL.User.Password()
	login := plain.Auth{User: b.URL.User.Username(), Pass: password}.AsMechanism()
	c, err := kgo.NewClient(append(more, kgo.SeedBrokers(b.URL.Host), kgo.SASL(login), kgo.DisableClientMetrics())...)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c, kadm.NewClient(c)
}

func publisher(t testing.TB, rawURL string) *kafka.Publisher {
	t.Helper()
	p, err := kafka.NewPublisher(rawURL, quiet())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

// publish publishes until it is confirmed, as a relay does.
func publish(t testing.TB, p *kafka.Publisher, m relay.Message) {
	t.Helper()
	var last error
	require.Eventually(t, func() bool {
		last = p.Publish(t.Context(), []relay.Message{m})[0]
		return last == nil || bus.IsPermanent(last)
	},
		needs.Patience(), 10*time.Millisecond)
	require.NoError(t, last)
}

// landing is a sink that says what has landed, and goes on when the test does.
type landing struct {
	said   *log
	landed chan []relay.Received
	goOn   chan error // what Land answers
	stop   func()
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
	case err := <-l.goOn:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// log is what a subscriber says.
type log struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// receive receives until the test ends.
func receive(t *testing.T, rawURL string) landing {
	t.Helper()
	said := &log{}
	config := kafka.Config{Logger: slog.New(slog.NewTextHandler(said, nil))}
	config.Group = rawURL[strings.LastIndex(rawURL, "/")+1:] // of the test's own, with the name of its topic
	s, err := kafka.NewSubscriber(rawURL, config)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	l, ended := landing{said: said, landed: make(chan []relay.Received), goOn: make(chan error)}, make(chan struct{})
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

// next is what comes next. It has not landed yet.
func (l landing) next(t *testing.T) (ids string) {
	t.Helper()
	select {
	case batch := <-l.landed:
		for _, r := range batch {
			ids += r.Attributes["id"]
		}
	case <-time.After(needs.Patience()):
		require.Fail(t, "nothing has come")
	}
	return ids
}

// Other programs read the attributes as the Kafka binding says.
func TestRecordsHaveKeyAndHeadersOfTheBinding(t *testing.T) {
	t.Parallel()
	b := testbroker.Shared(t, "kafka")
	rawURL, _ := topicURL(b, b.URL.Host)
	_, other := topicURL(b, b.URL.Host)
	m := message("a")
	m.Destination = other
	publish(t, publisher(t, rawURL), m)
	c, _ := admin(t, b, kgo.ConsumeTopics(other), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	ctx, cancel := context.WithTimeout(t.Context(), needs.Patience())
	defer cancel()
	r := c.PollFetches(ctx).Records()[0]
	require.Equal(t, "7/ORDER/1", string(r.Key))
	headers := make(map[string]string)
	for _, h := range r.Headers {
		headers[h.Key] = string(h.Value)
	}
	require.Equal(t, map[string]string{"ce_id": "a", "content-type": "application/json", relay.ReplayOf: "x"}, headers)
}

func TestADeletedTopicIsMadeAgain(t *testing.T) {
	t.Parallel()
	b := testbroker.Shared(t, "kafka")
	rawURL, topic := topicURL(b, b.URL.Host)
	p, l := publisher(t, rawURL), receive(t, rawURL)
	publish(t, p, message("a"))
	require.Equal(t, "a", l.next(t))
	l.goOn <- nil
	_, adm := admin(t, b)
	_, err := adm.DeleteTopic(t.Context(), topic)
	require.NoError(t, err)
	publish(t, p, message("b"))
	require.Equal(t, "b", l.next(t))
	l.goOn <- nil
}

// random cannot be compressed.
func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // it never fails
	return b
}

// A limit that is lower than the client knows refuses a whole batch: only what is too large by itself is DEAD.
func TestOnlyWhatIsTooLargeByItselfIsPermanent(t *testing.T) {
	t.Parallel()
	b := testbroker.Shared(t, "kafka")
	rawURL, topic := topicURL(b, b.URL.Host)
	p := publisher(t, rawURL)
	publish(t, p, message("a"))
	_, adm := admin(t, b)
	limit := "2000"
	_, err := adm.AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Name: "max.message.bytes", Value: &limit}}, topic)
	require.NoError(t, err)
	ms := []relay.Message{message("b"), message("c"), message("d")}
	for i, size := range []int{1, 5000, 1} {
		ms[i].Body = random(size)
	}
	var errs []error
	require.Eventually(t, func() bool { errs = p.Publish(t.Context(), ms); return errs[0] == nil && errs[1] != nil },
		needs.Patience(), 10*time.Millisecond)
	require.NoError(t, errs[2])
	require.True(t, bus.IsPermanent(errs[1]), "%v", errs[1])
	require.ErrorContains(t, errs[1], "the message has 5000 bytes")
}

// While an instance lands, its partitions stay with it. One that leaves without having landed gives them to another.
func TestPartitionsMoveAfterTheLanding(t *testing.T) {
	t.Parallel()
	b := testbroker.Shared(t, "kafka")
	rawURL, topic := topicURL(b, b.URL.Host)
	p, first := publisher(t, rawURL), receive(t, rawURL)
	publish(t, p, message("a"))
	require.Equal(t, "a", first.next(t))
	first.goOn <- errors.New("the database is away")
	require.Equal(t, "a", first.next(t), "it comes again")
	second := receive(t, rawURL)
	_, adm := admin(t, b)
	require.Eventually(t, func() bool {
		groups, err := adm.DescribeGroups(t.Context(), topic)
		return err == nil && groups[topic].State == "PreparingRebalance"
	}, needs.Patience(), 10*time.Millisecond, "the second instance waits for the first")
	require.Empty(t, second.landed)
	first.stop()
	require.Equal(t, "a", second.next(t))
	second.goOn <- nil
}

func TestSettingsThatLoseMessagesAreFound(t *testing.T) {
	t.Parallel()
	b := testbroker.Shared(t, "kafka")
	rawURL, topic := topicURL(b, b.URL.Host)
	p := publisher(t, rawURL)
	require.NoError(t, p.Connect(t.Context()))
	found, err := p.Examine(t.Context())
	require.NoError(t, err)
	require.Len(t, found, 2)
	require.Contains(t, found[0], "min.insync.replicas is 1")
	require.Contains(t, found[1], "retention.ms is 168h0m0s")
	_, adm := admin(t, b)
	forever, compact := "-1", "compact"
	changes := []kadm.AlterConfig{{Name: "retention.ms", Value: &forever}, {Name: "cleanup.policy", Value: &compact}}
	_, err = adm.AlterTopicConfigs(t.Context(), changes, topic)
	require.NoError(t, err)
	s, err := kafka.NewSubscriber(rawURL, quiet())
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		found, err = s.Examine(t.Context())
		return err == nil && len(found) == 2 && strings.Contains(found[1], "only the last message of each aggregate")
	}, needs.Patience(), 10*time.Millisecond)
}

// What was removed before it had landed is said, and the rest lands.
func TestRemovedRecordsStopNothing(t *testing.T) {
	t.Parallel()
	b := testbroker.Shared(t, "kafka")
	rawURL, topic := topicURL(b, b.URL.Host)
	p := publisher(t, rawURL)
	publish(t, p, message("a"))
	l := receive(t, rawURL)
	require.Equal(t, "a", l.next(t))
	l.goOn <- nil
	publish(t, p, message("b"))
	require.Equal(t, "b", l.next(t))
	l.stop() // it has landed a only
	publish(t, p, message("c"))
	_, adm := admin(t, b)
	ends, err := adm.ListEndOffsets(t.Context(), topic)
	require.NoError(t, err)
	removed := make(kadm.Offsets)
	ends.Each(func(o kadm.ListedOffset) { removed.AddOffset(o.Topic, o.Partition, max(o.Offset-1, 0), -1) })
	_, err = adm.DeleteRecords(t.Context(), removed)
	require.NoError(t, err)
	again := receive(t, rawURL)
	require.Equal(t, "c", again.next(t))
	require.Contains(t, again.said.String(), "messages were removed before they had landed")
	again.goOn <- nil
}

func TestWhatWasNotCommittedComesAgainAndRotatedCredentialsAreRefused(t *testing.T) {
	t.Parallel()
	b := testbroker.Start(t, "kafka")
	rawURL, topic := topicURL(b, b.URL.Host)
	p, first := publisher(t, rawURL), receive(t, rawURL)
	publish(t, p, message("a"))
	require.Equal(t, "a", first.next(t))
	b.Kill()
	first.goOn <- nil // it has landed, and nobody can be told
	first.stop()
	require.NoError(t, b.SetPassword("changed"))
	require.Eventually(t, func() bool {
		return errors.Is(p.Publish(t.Context(), []relay.Message{message("b")})[0], relay.ErrRefused)
	}, needs.Patience(), 10*time.Millisecond)

	u := *b.URL
	u.Path = "/" + topic
	second := receive(t, u.String())
	publish(t, publisher(t, u.String()), message("b"))
	again := second.next(t)
	second.goOn <- nil
	if again == "a" {
		again += second.next(t)
		second.goOn <- nil
	}
	require.Regexp(t, "^ab+$", again, "the first publisher may have sent its b, too")
}
