package nats

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/relay"
)

// Publisher publishes to a stream.
type Publisher struct{ *conn }

// NewPublisher returns a publisher for the stream of a URL: see [Form]. It connects when it is used.
func NewPublisher(url string, cfg Config) (*Publisher, error) {
	c, err := open(url, cfg)
	if err != nil {
		return nil, err
	}
	return &Publisher{c}, nil
}

// Publish publishes the messages side by side, and waits until the stream has acknowledged each.
func (p *Publisher) Publish(ctx context.Context, ms []relay.Message) []error {
	errs := make([]error, len(ms))
	js, down, err := p.open(ctx)
	if err != nil {
		for i := range errs {
			errs[i] = bus.Unavailable(err)
		}
		return errs
	}
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	go func() { // an acknowledgement under way is lost with the connection
		select {
		case <-down:
			cancel()
		case <-ctx.Done():
		}
	}()
	var wg sync.WaitGroup
	for i, m := range ms {
		wg.Go(func() { errs[i] = p.publish(ctx, js, m) })
	}
	wg.Wait()
	return errs
}

func (p *Publisher) publish(ctx context.Context, js jetstream.JetStream, m relay.Message) error {
	_, err := js.PublishMsg(ctx, p.message(m), jetstream.WithMsgID(m.ID), jetstream.WithExpectStream(p.stream), jetstream.WithRetryAttempts(0))
	var api *jetstream.APIError
	switch {
	case err == nil: // also for a duplicate
		return nil
	case errors.Is(err, nats.ErrMaxPayload), errors.As(err, &api) && api.ErrorCode == tooLarge:
		return bus.Permanent(fmt.Errorf("nats: the message has %d bytes: %w", len(m.Body), err))
	case errors.Is(err, jetstream.ErrNoStreamResponse), errors.Is(err, jetstream.ErrStreamNotFound):
		p.forget()
		return bus.Unavailable(fmt.Errorf("%w: nats: no stream takes the subject %s: %w", relay.ErrRefused, subject(p.stream, m), err))
	}
	return bus.Unavailable(refusal(wrap("publish to", p.stream, err)))
}

// tooLarge is the code of a stream's limit of the size of a message.
const tooLarge jetstream.ErrorCode = 10054

// message is a message in the CloudEvents binding of NATS.
func (p *Publisher) message(m relay.Message) *nats.Msg {
	msg := &nats.Msg{Subject: subject(p.stream, m), Data: m.Body, Header: make(nats.Header)}
	for name, v := range m.Attributes {
		msg.Header.Set(prefix+name, escapeHeader(v))
	}
	if len(m.Attributes) > 0 {
		msg.Header.Set(prefix+"datacontenttype", escapeHeader(m.ContentType))
	}
	for name, v := range m.Headers {
		msg.Header.Set(name, escapeHeader(v))
	}
	msg.Header.Set(contentType, escapeHeader(m.ContentType))
	return msg
}

const (
	prefix      = "ce-"
	contentType = "content-type"
)

func escapeHeader(s string) string {
	if s == "" {
		return ""
	}
	return escape(s, isHeader)
}
