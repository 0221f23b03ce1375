package rabbitmq

import (
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

// An inbox knows a message that it cannot read by what is in it: RabbitMQ, which counts redeliveries in a header, must not change that.
func TestRedeliveryIsTheSameMessage(t *testing.T) {
	t.Parallel()
	at := target{queue: "bluecone.inbox"}
	first := amqp.Delivery{Body: []byte("no JSON"), Headers: amqp.Table{"color": "red"}}
	again := amqp.Delivery{
		Body: []byte("no JSON"), Redelivered: true, DeliveryTag: 9,
		Headers: amqp.Table{"color": "red", "x-delivery-count": int64(2), "x-acquired-count": int64(3)},
	}
	require.Equal(t, at.received(first), at.received(again))
	require.Equal(t, map[string]string{"color": "red"}, at.received(again).Headers)
}
