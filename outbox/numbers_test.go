package outbox_test

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

// A text in a column of numbers, which SQLite alone takes, stops nobody else: neither in the rows of an event that waits to be tried
// again, or is new, nor in those of the registry and of instances.
func TestTextAmongNumbersStopsNobodyElse(t *testing.T) {
	t.Parallel()
	for _, c := range testdb.SQLiteNumbers(t) {
		t.Run(c.Table+"."+c.Name, func(t *testing.T) {
			t.Parallel()
			besideMalformed(t, "UPDATE "+c.Table+" SET "+c.Name+" = 'x'")
		})
	}
}

// Nor does a text of a megabyte, which SQLite takes in each column of texts.
func TestLongTextsStopNobodyElse(t *testing.T) {
	t.Parallel()
	for _, c := range testdb.SQLiteTexts(t) {
		t.Run(c.Table+"."+c.Name, func(t *testing.T) {
			t.Parallel()
			besideMalformed(t, "UPDATE "+c.Table+" SET "+c.Name+" = "+c.Name+" || printf('%.*c', 1000000, 'x')")
		})
	}
}

// besideMalformed looks that an event is delivered, in a publisher's first round, that is saved after all rows of a table were spoiled.
func besideMalformed(t *testing.T, spoil string) {
	t.Helper()
	f := newFixture(t, testdb.Open(t, "sqlite"))
	f.effects()
	f.counting("A", bus.ConsumerConfig{})
	bus.On(f.bus.Consumer("Moody", bus.ConsumerConfig{}), func(_ context.Context, _ bun.Tx, m bus.Message[orderPaid]) error {
		if m.Payload.OrderID != "good" {
			return errors.New("not yet")
		}
		return nil
	})
	f.save(orderPaid{OrderID: "waits"})
	f.once()
	f.save(orderPaid{OrderID: "new"})
	f.hurry()
	f.exec(spoil)
	f.save(orderPaid{OrderID: "good"})
	_, _ = f.publisher(outbox.PublisherConfig{}).RunOnce(t.Context()) // it may report the malformed row
	require.Equal(t, 2, f.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE status = 'SUCCESS' AND aggregate_id = 'good'"))
}
