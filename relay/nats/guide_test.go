package nats_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	_ "modernc.org/sqlite"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/bustest"
	"github.com/bluecone-go/bluecone/internal/testbroker"
	"github.com/bluecone-go/bluecone/outbox"
	"github.com/bluecone-go/bluecone/relay"
	"github.com/bluecone-go/bluecone/relay/inbox"
	"github.com/bluecone-go/bluecone/relay/nats"
)

type OrderPaid struct {
	OrderID string
	Cents   int
}

func (OrderPaid) EventType() string              { return "order.paid" }
func (e OrderPaid) Aggregate() (kind, id string) { return "ORDER", e.OrderID }

// sendAsTheGuideSays is the code of docs/guides/brokers.md for the service that sends.
func sendAsTheGuideSays(b *bus.Bus) (*nats.Publisher, error) {
	publisher, err := nats.NewPublisher("nats://shop:secret@broker:4222/ORDERS", nats.Config{})
	if err != nil {
		return nil, err
	}
	err = relay.Register(b, relay.Config{Types: []string{"order.paid"}, Source: "/bluecone/shop"}, publisher)
	return publisher, err
}

// receiveAsTheGuideSays is that of the other.
func receiveAsTheGuideSays(ctx context.Context, ob *outbox.Outbox, publisher *outbox.Publisher) error {
	subscriber, err := nats.NewSubscriber("nats://loyalty:secret@broker:4222/ORDERS", nats.Config{Durable: "loyalty"})
	if err != nil {
		return err
	}
	in, err := inbox.New(ob, inbox.Config{Source: "shop"}, subscriber)
	if err != nil {
		return err
	}
	err = bus.Run(ctx, publisher, in)
	return err
}

func TestTheGuide(t *testing.T) {
	t.Parallel()
	shop := bustest.New(t, bustest.NewDB(t))
	publisher, err := sendAsTheGuideSays(shop.Bus)
	require.NoError(t, err)
	require.NoError(t, publisher.Close())
	loyalty := bustest.New(t, bustest.NewDB(t))
	pub, err := outbox.NewPublisher(loyalty.Outbox, loyalty.Bus, outbox.PublisherConfig{})
	require.NoError(t, err)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, receiveAsTheGuideSays(ended, loyalty.Outbox, pub))
}

// Two services, each with a database of its own, and the broker killed between: everything arrives once, in order.
func TestTwoServices(t *testing.T) {
	t.Parallel()
	broker := server{testbroker.Start(t, "nats"), t}
	url := broker.URL(broker.Addr())
	ctx, stop := context.WithCancel(t.Context())
	shop := bustest.NewDB(t)
	ob := bustest.New(t, shop)
	publisher, err := nats.NewPublisher(url, quiet())
	require.NoError(t, err)
	require.NoError(t, relay.Register(ob.Bus, relay.Config{Types: []string{"order.paid"}}, publisher))
	sender, err := outbox.NewPublisher(ob.Outbox, ob.Bus, outbox.PublisherConfig{})
	require.NoError(t, err)

	loyalty := bustest.New(t, bustest.NewDB(t))
	got := make(chan OrderPaid, 1000)
	bus.On(loyalty.Bus.Consumer("Stamps", bus.ConsumerConfig{}), func(_ context.Context, _ bun.Tx, m bus.Message[OrderPaid]) error {
		got <- m.Payload
		return nil
	})
	receiver, err := outbox.NewPublisher(loyalty.Outbox, loyalty.Bus, outbox.PublisherConfig{})
	require.NoError(t, err)
	subscriber, err := nats.NewSubscriber(url, quiet())
	require.NoError(t, err)
	in, err := inbox.New(loyalty.Outbox, inbox.Config{Source: "shop"}, subscriber)
	require.NoError(t, err)
	ran := make(chan error, 1)
	go func() { ran <- bus.Run(ctx, sender, receiver, in) }()

	const orders, each = 5, 10
	for n := range each {
		for order := range orders {
			require.NoError(t, shop.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
				return ob.Outbox.Save(ctx, tx, OrderPaid{strings.Repeat("x", order+1), n})
			}))
		}
		if n == each/2 {
			broker.Kill()
			broker.Restart()
		}
	}
	next := make(map[string]int)
	for range orders * each {
		p := <-got
		require.Equal(t, next[p.OrderID], p.Cents, "in order")
		next[p.OrderID]++
	}
	stop()
	require.NoError(t, <-ran)
	require.NoError(t, publisher.Close())
	require.NoError(t, subscriber.Close())
	counts, err := in.Counts(t.Context())
	require.NoError(t, err)
	require.Equal(t, orders*each, counts.Landed)
	require.Empty(t, got, "nothing came twice")
}
