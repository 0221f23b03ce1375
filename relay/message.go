package relay

import (
	"context"
	"errors"
	"fmt"
)

// ReplayOf is the header of a message that an operator has had sent again. It holds the id of the event; the message has a new
// one, because a broker would take the same id for a duplicate. An inbox takes such a message for a duplicate all the same, unless
// it is told to accept replays.
const ReplayOf = "bluecone-replay-of"

// Message is one event on its way to a broker: a CloudEvent, whose attributes an adapter writes as its broker's binding says.
type Message struct {
	// ID is for the broker's own deduplication: the event_id, or a new one for a replay. It is the same each time that the message is
	// published again because nobody knew whether it had arrived.
	ID string
	// Destination is what Config.Destination said about the event: a topic, a subject or a routing key, as the adapter documents it.
	// Empty means that the adapter chooses.
	Destination string
	// Type is the event type, such as "order.paid".
	Type string
	// TenantID, AggregateType and AggregateID are the entity within which events keep their order; TenantID is 0 for none.
	TenantID                   int64
	AggregateType, AggregateID string
	// Attributes are the CloudEvents attributes by name, without a prefix, but for datacontenttype. In structured mode there are none: Body
	// has them.
	Attributes map[string]string
	// Headers are those beside the attributes, such as [ReplayOf]. They are written under their names.
	Headers map[string]string
	// ContentType is "application/json", and "application/cloudevents+json" in structured mode.
	ContentType string
	// Body is the payload as it is stored, or the whole CloudEvent in structured mode.
	Body []byte
}

// Key is "tenant/type/id": messages of one key keep their order. It is Kafka's key and RocketMQ's message group.
func (m Message) Key() string {
	return fmt.Sprintf("%d/%s/%s", m.TenantID, m.AggregateType, m.AggregateID)
}

// Publisher gives messages to a broker.
type Publisher interface {
	// Publish publishes the messages and waits for the broker's confirmations. It returns one error for each message, nil for what the
	// broker has confirmed. An error is an answer as a handler gives it: bus.Unavailable(err) where the broker cannot be reached, does not
	// answer in time, or refuses everything until a person fixes it (then it wraps [ErrRefused], too); bus.Permanent(err) for a message
	// that it will never take, such as one that is too large; any other is counted as an attempt. Publish connects by itself, is called
	// from several goroutines at a time, and returns soon after ctx has ended.
	Publish(ctx context.Context, ms []Message) []error
}

// Connection is what an adapter's publishers and subscribers have beside.
type Connection interface {
	// Broker says where the broker is and what is used of it, for people: the URL without user, password and options.
	Broker() string
	// Connect looks once whether the broker answers, takes the credentials, and has what the URL names, which it creates where it
	// is missing, unless the URL says create=false. An error that wraps [ErrRefused] stays until a person fixes it; any
	// other says that the broker is not there now, or may just have started. It is for programs that want to fail at their start; a
	// relay calls it now and then while it has nothing to publish.
	Connect(ctx context.Context) error
	// Close ends the connection and all goroutines. Nothing may be published or received by it any more.
	Close() error
}

// ErrRefused means that the broker answers and refuses: wrong credentials, no permission, or a topic, queue or stream that is not
// there and may not be created. Trying again is of no use until a person has changed something.
var ErrRefused = errors.New("the broker refuses")
