package relay

import (
	"context"
	"strings"
	"time"
)

// Received is a message as a broker delivers it.
type Received struct {
	// Topic is where it came from: a topic, a queue or a stream.
	Topic string
	// Partition is within what the broker keeps the order: "topic/3" for Kafka, or the queue or stream. It has at most 200 bytes.
	Partition string
	// Offset is its place there, such as a sequence number. A redelivery has the same. Where the broker has none (RabbitMQ) it is empty.
	Offset string
	// Time is what the broker has stored as the message's time, the same for each redelivery, or zero if it has none. A message at the
	// same place, but of another time, is another one: its topic was deleted and made anew.
	Time time.Time
	// Attributes are the CloudEvents attributes by name, without the binding's prefix; Headers are all others. [Received.Add] tells
	// them apart.
	Attributes, Headers map[string]string
	// ContentType is the broker's own property for it.
	ContentType string
	// Body is what was sent.
	Body []byte
}

// Add takes a header of the broker's. If its name begins with prefix, in any case, and the rest can be the name of a CloudEvents
// attribute (lower-case letters and digits), it is an attribute.
func (r *Received) Add(prefix, name, value string) {
	if len(name) > len(prefix) && strings.EqualFold(name[:len(prefix)], prefix) {
		if attribute := strings.ToLower(name[len(prefix):]); isAttribute(attribute) {
			if r.Attributes == nil {
				r.Attributes = make(map[string]string)
			}
			r.Attributes[attribute] = value
			return
		}
	}
	if r.Headers == nil {
		r.Headers = make(map[string]string)
	}
	r.Headers[name] = value
}

func isAttribute(name string) bool {
	return !strings.ContainsFunc(name, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') })
}

// Sink takes what a [Subscriber] receives: an inbox. Its methods may be called from several goroutines, for different partitions.
type Sink interface {
	// Ready waits until there is room for more. A partition is named if the broker would let several subscribers fetch from it at a
	// time, so that its order were lost: then Ready waits, too, until the inbox has the partition for itself among all its
	// instances. It has it for [Turn] from then on, and Land goes on with it. The name is empty where the broker sees to that,
	// as Kafka's groups and RabbitMQ's single active consumers do. The error is that of ctx.
	Ready(ctx context.Context, partition string) error
	// Land stores messages of one partition, in their order. When it returns nil they are committed, duplicates and unreadable ones
	// included, and may be acknowledged. After an error none of them may: they have to come again, before any later one.
	Land(ctx context.Context, batch []Received) error
	// Away tells why nothing can be received now, for people to see. A subscriber says so whenever it has lost its broker, and goes on by
	// itself.
	Away(err error)
}

// Turn is how long a subscriber may fetch after [Sink.Ready] or [Sink.Land] has returned, before it asks Ready again.
const Turn = 5 * time.Second

// Subscriber receives messages from a broker.
type Subscriber interface {
	// Receive hands everything that the broker has, and what comes, to in, until ctx ends; then it returns nil. It makes broken
	// connections again. It returns an error only if the broker refuses it at the first connection ([ErrRefused]); later that is
	// logged, and tried again.
	Receive(ctx context.Context, in Sink) error
}

// Lagging is a subscriber that tells how far it is behind. An inbox asks every few seconds, beside Receive.
type Lagging interface {
	// Lag asks the broker how many messages it has that this service has not acknowledged; -1 where it does not tell. An error says, as
	// one of [Connection.Connect], that the broker is away or refuses.
	Lag(ctx context.Context) (int64, error)
}
