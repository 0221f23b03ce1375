package nats

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/bluecone-go/bluecone/relay"
)

const (
	// perFetch is how many messages are landed together.
	perFetch = 256
	// fetchFor is how long a fetch waits for the next message.
	fetchFor = 2 * time.Second
	// ackWait is how long the server waits for an acknowledgement.
	ackWait = time.Minute
)

// Subscriber receives a stream.
type Subscriber struct{ *conn }

// NewSubscriber returns a subscriber of the stream of a URL: see [Form]. It connects when it is used.
func NewSubscriber(url string, cfg Config) (*Subscriber, error) {
	c, err := open(url, cfg)
	if err != nil {
		return nil, err
	}
	return &Subscriber{c}, nil
}

// Receive hands the messages of the stream to in, in their order, until ctx ends.
func (s *Subscriber) Receive(ctx context.Context, in relay.Sink) error {
	said := ""
	for first, pause := true, 50*time.Millisecond; ctx.Err() == nil; pause = min(2*pause, 2*time.Second) {
		began := time.Now()
		connected, err := s.session(ctx, in)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // it was told to end
		case first && errors.Is(err, relay.ErrRefused):
			return err
		case connected:
			first = false
		}
		if time.Since(began) > 10*time.Second {
			pause = 50 * time.Millisecond
		}
		in.Away(err)
		if text := err.Error(); text != said {
			said = text
			s.cfg.Logger.WarnContext(ctx, "nats: receiving was interrupted; it goes on by itself", "stream", s.stream, "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	return nil
}

// session receives until something goes wrong. After that nothing is known of what the server has given us and we have not
// acknowledged: the next session begins behind the last acknowledged message.
func (s *Subscriber) session(ctx context.Context, in relay.Sink) (connected bool, err error) {
	js, down, err := s.open(ctx)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-down:
			cancel(fmt.Errorf("nats: the connection to %s broke", s.url.Host))
		case <-ctx.Done():
		}
	}()
	if err := in.Ready(ctx, s.stream); err != nil {
		return true, context.Cause(ctx)
	}
	c, next, err := s.consumer(ctx, js)
	if err != nil {
		return true, err
	}
	for {
		if err := in.Ready(ctx, s.stream); err != nil {
			return true, context.Cause(ctx)
		}
		batch, err := fetch(ctx, c)
		if err != nil {
			return true, wrap("fetch from", s.stream, err)
		}
		if next, err = s.land(ctx, in, batch, next); err != nil {
			return true, err
		}
	}
}

// fetch returns what is there, or else the next message that comes.
func fetch(ctx context.Context, c jetstream.Consumer) (msgs []jetstream.Msg, err error) {
	batch, err := c.FetchNoWait(perFetch)
	if err != nil {
		return nil, err
	}
	for m := range batch.Messages() {
		msgs = append(msgs, m)
	}
	if len(msgs) > 0 || batch.Error() != nil {
		return msgs, batch.Error()
	}
	limited, cancel := context.WithTimeout(ctx, fetchFor)
	defer cancel()
	batch, err = c.Fetch(1, jetstream.FetchContext(limited), jetstream.FetchHeartbeat(fetchFor/4))
	if err != nil {
		return nil, err
	}
	for m := range batch.Messages() {
		msgs = append(msgs, m)
	}
	err = batch.Error()
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		err = nil // nothing has come
	}
	return msgs, err
}

// land lands what was fetched and acknowledges it. The first of them has to be number next of what the consumer has given out: if one is
// missing, the server has given it to somebody who has not heard of it.
func (s *Subscriber) land(ctx context.Context, in relay.Sink, msgs []jetstream.Msg, next uint64) (uint64, error) {
	if len(msgs) == 0 {
		return next, nil
	}
	batch := make([]relay.Received, len(msgs))
	for i, m := range msgs {
		at, err := m.Metadata()
		if err != nil {
			return next, wrap("read a message of", s.stream, err)
		}
		if at.Sequence.Consumer != next {
			return next, fmt.Errorf("nats: a message of %s did not arrive: the consumer gave out number %d after %d", s.stream, at.Sequence.Consumer,
				next-1)
		}
		next++
		batch[i] = s.received(m, at)
	}
	if err := in.Land(ctx, batch); err != nil {
		return next, wrap("land messages of", s.stream, err)
	}
	last := len(msgs) - 1
	for _, m := range msgs[:last] {
		if err := m.Ack(); err != nil {
			return next, wrap("acknowledge to", s.stream, err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	return next, wrap("acknowledge to", s.stream, msgs[last].DoubleAck(ctx)) // the server has those before, too
}

func (s *Subscriber) received(m jetstream.Msg, at *jetstream.MsgMetadata) relay.Received {
	r := relay.Received{
		Topic: s.stream, Partition: s.stream, Offset: strconv.FormatUint(at.Sequence.Stream, 10), Time: at.Timestamp,
		Body: m.Data(),
	}
	for name, values := range m.Headers() {
		value := unescaped(strings.Join(values, ","))
		switch {
		case strings.EqualFold(name, contentType):
			r.ContentType = value
		case strings.EqualFold(name, prefix+"datacontenttype"):
			if r.ContentType == "" {
				r.ContentType = value
			}
		default:
			r.Add(prefix, name, value)
		}
	}
	return r
}
