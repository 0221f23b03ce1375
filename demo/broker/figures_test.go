package broker_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/demo/broker"
	"github.com/bluecone-go/bluecone/internal/faultdb"
	"github.com/bluecone-go/bluecone/internal/testbroker"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/migrations"
	"github.com/bluecone-go/bluecone/outbox"
	"github.com/bluecone-go/bluecone/relay"
	"github.com/bluecone-go/bluecone/relay/inbox"
)

const (
	usual      = 20_000 // events
	aggregates = 512    // as many as a relay may have unconfirmed
	rate       = 200    // events per second, for the latency
	lasts      = 20 * time.Second
)

// ordered is an event of one of the aggregates.
type ordered struct {
	Number int       `json:"number"`
	At     time.Time `json:"at"`
	Text   string    `json:"text"`
}

func (ordered) EventType() string              { return "order.measured" }
func (o ordered) Aggregate() (kind, id string) { return "ORDER", fmt.Sprint(o.Number % aggregates) }

func event(i int) ordered {
	return ordered{Number: i, At: time.Now(), Text: "a text of the length that an ordinary event has, more or less, or a little more"}
}

// What a relay, an inbox and each broker between them do, beside the broker's own client: docs/measurements/brokers.md.
//
//	cd demo && BLUECONE_TEST_MEASURE=1 go test -count=1 -v -timeout 1h -run MeasureBrokers ./broker
func TestMeasureBrokers(t *testing.T) { //nolint:paralleltest // it measures
	n := testdb.MeasuresWith(t, usual)
	for _, name := range []string{"nats", "redis", "rabbitmq", "kafka", "rocketmq"} { //nolint:paralleltest // it measures
		t.Run(name, func(t *testing.T) {
			b := testbroker.Start(t, name)
			if name == "rocketmq" {
				require.NoError(t, b.CreateFIFO("for-mysql", "for-postgres"))
				require.NoError(t, b.CreateGroups("figures"))
			}
			for _, database := range []string{"mysql", "postgres"} {
				url := urlOf(b, "for-"+database)
				publisher, err := broker.NewPublisher(url)
				require.NoError(t, err)
				defer func() { require.NoError(t, publisher.Close()) }()
				require.NoError(t, publisher.Connect(t.Context()))
				measure(t, name, database, n, publisher, url, func() float64 { return ownRate(t, owns()[name], b, "own-"+database, n) })
			}
		})
	}
}

func measure(t *testing.T, name, database string, n int, publisher relay.Publisher, url string, own func() float64) {
	t.Helper()
	from, to := newService(t, database), newService(t, database)
	require.NoError(t, relay.Register(from.bus, relay.Config{Types: []string{"order.measured"}, Source: "/bluecone/figures"}, publisher))
	subscriber, err := broker.NewSubscriber(url, "figures")
	require.NoError(t, err)
	defer func() { require.NoError(t, subscriber.Close()) }()
	relayed, perRelayed := from.relays(n)
	owned := own()
	landed, perLanded := to.lands(subscriber, n)
	handled, perHandled := to.handles(n)
	p50, p99 := latency(from, to, subscriber)
	t.Logf("| %s | %s | %.0f | %.0f | %.2f | %.0f | %.0f | %v | %v | %.2f | %.2f | %.2f |", name, database, relayed, owned, relayed/owned,
		landed, handled, p50.Round(100*time.Microsecond), p99.Round(100*time.Microsecond), perRelayed, perLanded, perHandled)
}

// ownRate is how many events a second the broker's own client publishes. RocketMQ's is not measured, 0: it
// needs versions of modules that do not go together with those that other modules here need.
func ownRate(t *testing.T, own ownClient, b *testbroker.Broker, topic string, n int) float64 {
	t.Helper()
	if own == nil {
		return 0
	}
	bodies := make([][]byte, n)
	for i := range bodies {
		bodies[i] = fmt.Appendf(nil, `{"number":%d,"at":"2026-11-26T00:00:00.000000000Z","text":%q}`, i, event(i).Text)
	}
	began := time.Now()
	require.NoError(t, own(t.Context(), b.URL, topic, bodies))
	return float64(n) / time.Since(began).Seconds()
}

// service is one of the two, with a database of its own, whose statements are counted.
type service struct {
	t          *testing.T
	db         *bun.DB
	plain      *bun.DB // whose statements are not counted
	ob         *outbox.Outbox
	bus        *bus.Bus
	statements atomic.Int64
	handled    atomic.Int64
	mu         sync.Mutex
	took       []time.Duration
}

func newService(t *testing.T, server string) *service {
	t.Helper()
	s := &service{t: t}
	dsn := testdb.DSN(t, server)
	db, err := testdb.ConnectHooked(dsn, faultdb.Hook{Before: func(context.Context, faultdb.Step) error {
		s.statements.Add(1)
		return nil
	}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	db.SetMaxOpenConns(20)
	db.SetMaxIdleConns(20)
	require.NoError(t, migrations.Up(t.Context(), db))
	logger := slog.New(slog.DiscardHandler)
	s.plain = testdb.OpenDSN(t, dsn)
	s.db, s.bus = db, bus.New(db, bus.Config{Logger: logger})
	s.ob, err = outbox.New(db, outbox.Config{Logger: logger})
	require.NoError(t, err)
	return s
}

// save saves events, many in a transaction.
func (s *service) save(n int) {
	s.t.Helper()
	for some := range slices.Chunk(make([]bus.Event, n), 500) {
		for i := range some {
			some[i] = event(i)
		}
		require.NoError(s.t, s.db.RunInTx(s.t.Context(), nil, func(ctx context.Context, tx bun.Tx) error { return s.ob.Save(ctx, tx, some...) }))
	}
}

// during runs runners until done says so, and tells how long that took and how many statements it sent.
func (s *service) during(done func() bool, runners ...bus.Runner) (took time.Duration, statements int64) {
	s.t.Helper()
	ctx, stop := context.WithCancel(s.t.Context())
	before, began := s.statements.Load(), time.Now()
	ended := make(chan error, 1)
	go func() { ended <- bus.Run(ctx, runners...) }()
	for !done() {
		<-time.After(50 * time.Millisecond)
		require.Less(s.t, time.Since(began), testdb.Patience())
	}
	took, statements = time.Since(began), s.statements.Load()-before
	stop()
	require.NoError(s.t, <-ended)
	return took, statements
}

func (s *service) publisher() bus.Runner {
	s.t.Helper()
	p, err := outbox.NewPublisher(s.ob, s.bus, outbox.PublisherConfig{})
	require.NoError(s.t, err)
	return p
}

// relays is how many events a second go from the outbox to the broker, and how many statements each takes.
func (s *service) relays(n int) (perSecond, each float64) {
	s.t.Helper()
	s.save(n)
	took, statements := s.during(func() bool {
		return testdb.Count(s.t, s.plain, "SELECT COUNT(*) FROM bc_outbox_event WHERE status <> 'SENT'") == 0
	}, s.publisher())
	return float64(n) / took.Seconds(), float64(statements) / float64(n)
}

// lands is how many messages a second land, and handles how many of them are handled then.
func (s *service) lands(from relay.Subscriber, n int) (perSecond, each float64) {
	s.t.Helper()
	in, err := inbox.New(s.ob, inbox.Config{Source: "figures", Open: 10 * n}, from)
	require.NoError(s.t, err)
	took, statements := s.during(func() bool {
		return testdb.Count(s.t, s.plain, "SELECT COALESCE(SUM(landed), 0) FROM bc_inbox") >= n
	}, in)
	return float64(n) / took.Seconds(), float64(statements) / float64(n)
}

func (s *service) handles(n int) (perSecond, each float64) {
	s.t.Helper()
	bus.On(s.bus.Consumer("Measured", bus.ConsumerConfig{}), func(_ context.Context, _ bun.Tx, m bus.Message[ordered]) error {
		s.handled.Add(1)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.took = append(s.took, time.Since(m.Payload.At))
		return nil
	})
	took, statements := s.during(func() bool { return s.handled.Load() >= int64(n) }, s.publisher())
	return float64(n) / took.Seconds(), float64(statements) / float64(n)
}

// latency is how long it takes from the COMMIT of an event to its handler in the other service, at an even rate.
func latency(from, to *service, by relay.Subscriber) (p50, p99 time.Duration) {
	from.t.Helper()
	in, err := inbox.New(to.ob, inbox.Config{Source: "figures"}, by)
	require.NoError(from.t, err)
	to.mu.Lock()
	to.took = nil
	to.mu.Unlock()
	want := to.handled.Load() + int64(lasts.Seconds()*rate)
	ctx, stop := context.WithCancel(from.t.Context())
	ended := make(chan error, 1)
	sender := from.publisher()
	go func() { ended <- bus.Run(ctx, sender) }()
	var saving sync.WaitGroup
	saving.Go(func() {
		tick := time.NewTicker(time.Second / rate)
		defer tick.Stop()
		for i := range int(lasts.Seconds() * rate) {
			<-tick.C
			err := from.db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error { return from.ob.Save(ctx, tx, event(i)) })
			if err != nil {
				from.t.Error(err)
			}
		}
	})
	to.during(func() bool { return to.handled.Load() >= want }, in, to.publisher())
	saving.Wait()
	stop()
	require.NoError(from.t, <-ended)
	slices.Sort(to.took)
	return to.took[len(to.took)/2], to.took[len(to.took)*99/100]
}
