package main

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/ops"
	"github.com/bluecone-go/bluecone/outbox"
)

// A consumer of a new release gets the past from the command line.
func TestConsumersBackfill(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, d *deployment) {
		d.save(paid{OrderID: "1"}, paid{OrderID: "2"}, paid{OrderID: "3"})
		d.work(nil)
		ob, err := outbox.New(d.db, outbox.Config{Instance: "shop-2", Logger: silent()})
		require.NoError(t, err)
		var had []string
		b := bus.New(d.db, bus.Config{Logger: silent()})
		bus.On(b.Consumer("Late", bus.ConsumerConfig{Concurrency: 1}), func(_ context.Context, _ bun.Tx, m bus.Message[paid]) error {
			had = append(had, m.Payload.OrderID)
			return nil
		})
		pub, err := outbox.NewPublisher(ob, b, outbox.PublisherConfig{})
		require.NoError(t, err)
		_, err = pub.RunOnce(t.Context())
		require.NoError(t, err)
		require.Empty(t, had)
		done := as[ops.Bulk](t, d.ok("consumers", "backfill", "Late", "--since", "1h", "--rate", "1000", "--reason", "new", "-o", "json"))
		require.Equal(t, ops.BulkDone, done.State)
		require.EqualValues(t, 3, done.Done)
		_, err = pub.RunOnce(t.Context())
		require.NoError(t, err)
		require.ElementsMatch(t, []string{"1", "2", "3"}, had)
	})
}
