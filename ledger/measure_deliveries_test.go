package ledger_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/ledger"
	"github.com/bluecone-go/bluecone/ledger/ledgerv1"
	"github.com/bluecone-go/bluecone/outbox"
)

// Events wait for three consumers with handlers that do nothing: of the same process, and remote ones that fetch and ack in batches
// of 500, over HTTP. Everything is in this process but the servers' databases.
func TestMeasureFetchAndAck(t *testing.T) { //nolint:paralleltest // it measures
	events := testdb.MeasuresWith(t, 10_000)
	for _, name := range testdb.Dialects() { //nolint:paralleltest // likewise
		t.Run(name, func(t *testing.T) {
			direct := 3 * float64(events) / delivered(t, name, events, nil).Seconds()
			remote := 3 * float64(events) / delivered(t, name, events, fetchAndAck).Seconds()
			t.Logf("| %s | %d | %.0f | %.0f |", name, events, direct, remote)
		})
	}
}

// delivered is how long it takes to deliver what waits, by consumers of the bus or else by remote ones.
func delivered(t *testing.T, name string, events int, remote func(t *testing.T, c *ledger.Client, consumer string, left *atomic.Int64),
) time.Duration {
	t.Helper()
	db, quiet := testdb.Open(t, name), slog.New(slog.DiscardHandler)
	ob, err := outbox.New(db, outbox.Config{Logger: quiet})
	require.NoError(t, err)
	for first := 0; first < events; first += 500 {
		require.NoError(t, db.RunInTx(t.Context(), nil, func(ctx context.Context, tx bun.Tx) error {
			var all []bus.Event
			for n := range 500 {
				all = append(all, paid{fmt.Sprint(first + n)})
			}
			return ob.Save(ctx, tx, all...)
		}))
	}
	var left atomic.Int64
	left.Store(3 * int64(events))
	b := bus.New(db, bus.Config{Logger: quiet})
	if remote == nil {
		for n := range 3 {
			bus.On(b.Consumer(fmt.Sprint("C", n), bus.ConsumerConfig{}), func(context.Context, bun.Tx, bus.Message[paid]) error {
				left.Add(-1)
				return nil
			})
		}
	}
	pub, err := outbox.NewPublisher(ob, b, outbox.PublisherConfig{Retention: outbox.RetentionConfig{Keep: -1}})
	require.NoError(t, err)
	s, err := ledger.New(db, ob, ledger.Config{Authorizer: ledger.Anybody, Logger: quiet})
	require.NoError(t, err)
	server := httptest.NewServer(s)
	defer server.Close()
	testdb.Run[interface {
		Run(ctx context.Context) error
	}](t, s)
	client, err := clientOf(server.URL, "")
	require.NoError(t, err)
	began := time.Now()
	var all sync.WaitGroup
	for n := range 3 {
		if remote != nil {
			all.Go(func() { remote(t, client, fmt.Sprint("C", n), &left) })
		}
	}
	if remote != nil { // they are registered
		require.Eventually(t, func() bool { return s.Waiting() == 3 }, testdb.Patience(), time.Millisecond)
		began = time.Now()
	}
	testdb.Run(t, pub)
	require.Eventually(t, func() bool { return left.Load() <= 0 }, testdb.Patience(), time.Millisecond)
	took := time.Since(began)
	all.Wait()
	return took
}

// fetchAndAck is a remote consumer.
func fetchAndAck(t *testing.T, c *ledger.Client, consumer string, left *atomic.Int64) {
	t.Helper()
	for left.Load() > 0 {
		got, err := c.Fetch(t.Context(), &ledgerv1.FetchRequest{
			Consumer: consumer, EventTypes: []string{"order.paid"}, Max: 500, Wait: durationpb.New(time.Second),
		})
		if err != nil {
			t.Error(err)
			return
		}
		acks := &ledgerv1.AckRequest{}
		for _, d := range got.GetDeliveries() {
			acks.Acks = append(acks.Acks, &ledgerv1.FinishConsumeRequest{ConsumeToken: d.GetConsumeToken(), Outcome: "SUCCESS"})
		}
		if len(acks.GetAcks()) == 0 {
			continue
		}
		if _, err := c.Ack(t.Context(), acks); err != nil {
			t.Error(err)
			return
		}
		left.Add(-int64(len(acks.GetAcks())))
	}
}
