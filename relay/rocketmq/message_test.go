package rocketmq

import (
	"errors"
	"strings"
	"testing"
	"time"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/relay"
)

func paid() relay.Message {
	return relay.Message{
		ID: "a", TenantID: 7, AggregateType: "ORDER", AggregateID: "1", ContentType: "application/json", Body: []byte(`{"n":1}`),
		Attributes: map[string]string{"id": "a", "type": "order.paid"}, Headers: map[string]string{relay.ReplayOf: "x"},
	}
}

// Other programs read the attributes as the CloudEvents SDK for Java writes them.
func TestMessagesHaveGroupAndPropertiesOfTheBinding(t *testing.T) {
	t.Parallel()
	m := message("orders", paid())
	require.Equal(t, "7/ORDER/1", m.GetSystemProperties().GetMessageGroup())
	require.Equal(t, "a", m.GetSystemProperties().GetMessageId())
	require.Equal(t, v2.MessageType_FIFO, m.GetSystemProperties().GetMessageType())
	require.Equal(t, map[string]string{
		"CE_id": "a", "CE_type": "order.paid", "CE_contenttype": "application/json", relay.ReplayOf: "x",
	}, m.GetUserProperties())
	empty := paid()
	empty.Body = nil
	require.Equal(t, []byte{0}, message("orders", empty).GetBody())
}

// RocketMQ refuses message groups that are long or have control characters. Their hashes tell aggregates apart all the same.
func TestMessageGroupsThatRocketMQDoesNotTakeAreHashed(t *testing.T) {
	t.Parallel()
	seen := make(map[string]bool)
	for _, id := range []string{strings.Repeat("x", 100), strings.Repeat("x", 101), "a\nb", "a\tb"} {
		m := paid()
		m.AggregateID = id
		group := messageGroup(m)
		require.Len(t, group, mostGroup)
		require.False(t, seen[group])
		seen[group] = true
	}
}

func TestForeignMessagesKeepTheOrderOfTheirGroup(t *testing.T) {
	t.Parallel()
	group, offset := "their order", int64(9)
	r := received("orders", "b1", &v2.Message{
		UserProperties: map[string]string{"ce_type": "order.sent", "color": "red"},
		SystemProperties: &v2.SystemProperties{
			MessageGroup: &group, QueueId: 3, QueueOffset: &offset, BornTimestamp: timestamppb.New(time.UnixMilli(7)),
		},
	})
	require.Equal(t, int64(7), r.Time.UnixMilli())
	require.Zero(t, received("orders", "b1", &v2.Message{}).Time, "no time is none, not one of 1970")
	require.Equal(t, "orders/b1/3", r.Partition)
	require.Equal(t, "9", r.Offset)
	require.Equal(t, map[string]string{"type": "order.sent", "partitionkey": "their order"}, r.Attributes)
	require.Equal(t, map[string]string{"color": "red"}, r.Headers)
}

func queue(broker, host string, kinds ...v2.MessageType) *v2.MessageQueue {
	return &v2.MessageQueue{AcceptMessageTypes: kinds, Broker: &v2.Broker{
		Name: broker, Endpoints: &v2.Endpoints{Addresses: []*v2.Address{{Host: host, Port: 8081}}},
	}}
}

// Every broker is asked once, and what would lose the order is refused.
func TestBrokersOfATopic(t *testing.T) {
	t.Parallel()
	fifo := v2.MessageType_FIFO
	found, err := onePerBroker("orders", []*v2.MessageQueue{queue("a", "p", fifo), queue("a", "p", fifo), queue("b", "p", fifo)})
	require.NoError(t, err)
	require.Len(t, found, 2)
	_, err = onePerBroker("orders", []*v2.MessageQueue{queue("a", "p", v2.MessageType_NORMAL)})
	require.ErrorContains(t, classify(err), "it is not FIFO")
	require.ErrorIs(t, classify(err), relay.ErrRefused)
	_, err = onePerBroker("orders", []*v2.MessageQueue{queue("a", "p1", fifo), queue("b", "p2", fifo)})
	require.ErrorContains(t, classify(err), "CLUSTER mode")
	require.ErrorIs(t, classify(err), relay.ErrRefused)
	_, err = onePerBroker("orders", nil)
	require.Error(t, err)
	require.NotErrorIs(t, classify(err), relay.ErrRefused)
}

// What a broker says about one message is DEAD, what it says about itself is waited for.
func TestAnswersMeanWhatTheyMean(t *testing.T) {
	t.Parallel()
	for code, isPermanent := range map[v2.Code]bool{
		v2.Code_MESSAGE_BODY_TOO_LARGE: true, v2.Code_ILLEGAL_MESSAGE_PROPERTY_KEY: true, v2.Code_HA_NOT_AVAILABLE: false,
		v2.Code_INTERNAL_SERVER_ERROR: false, v2.Code_PROXY_TIMEOUT: false, v2.Code_NOT_IMPLEMENTED: false, v2.Code_FORBIDDEN: false,
	} {
		err := classify(answered(nil, &v2.Status{Code: code}))
		require.Equal(t, isPermanent, bus.IsPermanent(err), "%v", err)
	}
	require.NoError(t, classify(answered(nil, &v2.Status{Code: v2.Code_OK})))
	require.Error(t, classify(answered(nil, nil)), "an answer without a status is none")
}

// A proxy that has just started does not know its topics, which is no reason to give up: for a program that starts beside it, too.
func TestAMissingTopicIsWaitedForWhileRocketMQMayStart(t *testing.T) {
	t.Parallel()
	to, err := parse("rocketmq://h:1/orders", Config{})
	require.NoError(t, err)
	none := &v2.Status{Code: v2.Code_TOPIC_NOT_FOUND}
	for _, begin := range []func(){
		func() {}, // nothing was asked yet
		func() { require.Error(t, to.outcome("orders", errors.New("away"), nil)) },
	} {
		begin()
		err = to.outcome("orders", nil, none)
		require.NotErrorIs(t, err, relay.ErrRefused)
		require.ErrorContains(t, err, "mqadmin updateTopic")
		to.unsureSince.Store(time.Now().Add(-startsFor).UnixNano())
		require.ErrorIs(t, to.outcome("orders", nil, none), relay.ErrRefused)
	}
}
