package outbox_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

// counted is an orderPaid that counts how often it is decoded, by OrderID.
type counted struct{ orderPaid }

var decodings sync.Map

func (c *counted) UnmarshalJSON(b []byte) error {
	if err := json.Unmarshal(b, &c.orderPaid); err != nil {
		return err
	}
	n, _ := decodings.LoadOrStore(c.OrderID, new(atomic.Int32))
	n.(*atomic.Int32).Add(1)
	return nil
}

// Consumers of one type share the work of decoding.
func TestPayloadIsDecodedOnceForAllOfAType(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		for i := range 3 {
			bus.On(f.bus.Consumer(fmt.Sprint("Consumer", i), bus.ConsumerConfig{}), func(_ context.Context, _ bun.Tx, m bus.Message[counted]) error {
				if m.Payload.Seq != 7 {
					return bus.Permanent(fmt.Errorf("Seq is %d", m.Payload.Seq))
				}
				return nil
			})
		}
		f.save(orderPaid{OrderID: t.Name(), Seq: 7})
		f.once()
		require.Equal(t, map[consumelog.Status]int{consumelog.Success: 3}, f.deliveries())
		n, _ := decodings.Load(t.Name())
		require.Equal(t, int32(1), n.(*atomic.Int32).Load())
	})
}

// basket is an orderPaid with something that a handler can write to.
type basket struct {
	orderPaid
	Items []string `json:"items"`
}

// What a handler does to its payload, no other handler and no other attempt sees.
func TestHandlerOwnsItsPayload(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		for i := range 3 {
			bus.On(f.bus.Consumer(fmt.Sprint("Consumer", i), bus.ConsumerConfig{}), func(_ context.Context, _ bun.Tx, m bus.Message[basket]) error {
				if got := fmt.Sprint(m.Payload.Items); got != "[pen ink]" {
					return bus.Permanent(fmt.Errorf("the items are %s", got))
				}
				m.Payload.Items[0] = "eaten"
				return nil
			})
		}
		f.save(basket{orderPaid{OrderID: "1"}, []string{"pen", "ink"}})
		f.once()
		require.Equal(t, map[consumelog.Status]int{consumelog.Success: 3}, f.deliveries())
	})
}
