package outbox_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

// basket is an orderPaid with something that a handler can write to.
type basket struct {
	orderPaid
	Items []string `json:"items"`
}

// Each delivery decodes its payload. What a handler does to it, no other handler and no other attempt sees.
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
