package bus_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// SQLTx takes what the bus has handed to a handler, and nothing else.
func TestSQLTxTakesATransactionOfTheBus(t *testing.T) {
	t.Parallel()
	for _, tx := range []bus.Tx{nil, struct{ bus.Tx }{}} {
		_, err := bus.SQLTx(t.Context(), tx)
		require.ErrorContains(t, err, "give it the bus.Tx that OnSQL has handed to the handler")
	}
}

// What another package finds wrong is returned with the bus's own findings; after the start it is late.
func TestMistakesThatOtherPackagesFindAreReturned(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		ob, err := outbox.New(db, outbox.Config{})
		require.NoError(t, err)
		b := bus.New(db, bus.Config{})
		c := b.Consumer("A", bus.ConsumerConfig{})
		require.Equal(t, testdb.Dialect(testdb.Server(t, db)), c.Database())
		require.Equal(t, c.Database(), ob.Database())
		bus.OnSQL(c, func(context.Context, bus.Tx, bus.Message[parcelShipped]) error { return nil })
		wrong := errors.New("other.On: this does not work")
		c.Refuse(wrong)
		_, err = outbox.NewPublisher(ob, b, outbox.PublisherConfig{})
		require.ErrorIs(t, err, wrong)
	})
	require.Empty(t, bus.New(nil, bus.Config{}).Consumer("A", bus.ConsumerConfig{}).Database())
}
