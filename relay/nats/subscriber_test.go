package nats

import (
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

// bare is a message without headers.
type bare struct{ jetstream.Msg }

func (bare) Data() []byte           { return []byte("{}") }
func (bare) Headers() natsgo.Header { return nil }

// An inbox names what has no id by its place and its time, which are the same when it comes again.
func TestMessagesHavePlaceAndTime(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 28, 6, 0, 0, 0, time.UTC)
	s := &Subscriber{&conn{stream: "ORDERS"}}
	r := s.received(bare{}, &jetstream.MsgMetadata{Sequence: jetstream.SequencePair{Stream: 9, Consumer: 2}, Timestamp: at})
	require.Equal(t, []string{"ORDERS", "ORDERS", "9"}, []string{r.Topic, r.Partition, r.Offset})
	require.Equal(t, at, r.Time)
}
