package nats

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"
)

// Examine says by which settings of the stream what it has confirmed may be lost, one sentence each. It does not see the server's
// sync_interval: what was acknowledged within the last 2 minutes is lost with a machine, unless that says always.
func (c *conn) Examine(ctx context.Context) ([]string, error) {
	js, _, err := c.open(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	stream, err := js.Stream(ctx, c.stream)
	if err != nil {
		return nil, refusal(wrap("look at", c.stream, err))
	}
	return losses(stream.CachedInfo().Config), nil
}

// losses are the settings of a stream by which it loses messages.
func losses(of jetstream.StreamConfig) (found []string) {
	say := func(isBad bool, text string, args ...any) {
		if isBad {
			found = append(found, fmt.Sprintf(text, args...))
		}
	}
	say(of.Storage != jetstream.FileStorage, "the stream is in memory: a server that ends loses what it has confirmed")
	say(of.NoAck, "no_ack is set: the server confirms nothing, so that each message is published again and again")
	say(of.MaxAge > 0, "max_age is %v: what no inbox has landed by then is deleted", of.MaxAge)
	if of.Discard != jetstream.DiscardNew { // otherwise the relay waits until there is room
		say(of.MaxMsgs > 0, "max_msgs is %d: what is beyond is deleted, landed or not", of.MaxMsgs)
		say(of.MaxBytes > 0, "max_bytes is %d: what is beyond is deleted, landed or not", of.MaxBytes)
	}
	say(of.MaxMsgsPerSubject > 0, "max_msgs_per_subject is %d: of each aggregate only so many are kept, landed or not", of.MaxMsgsPerSubject)
	return found
}
