package rocketmq

import (
	"cmp"
	"context"
	"sync"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/bluecone-go/bluecone/relay"
)

// Publisher publishes events to topics. A message's Destination is the topic; empty means that of the URL.
type Publisher struct {
	target
	conn *conn
}

// NewPublisher makes a publisher from a URL, without connecting.
func NewPublisher(url string, config Config) (*Publisher, error) {
	t, err := parse(url, config)
	if err != nil {
		return nil, err
	}
	c, err := t.dial()
	return &Publisher{t, c}, err
}

// Connect looks once whether the proxy answers, takes the credentials, and has the topic: see [relay.Connection].
func (p *Publisher) Connect(ctx context.Context) error {
	_, err := p.brokers(ctx, p.conn)
	return err
}

// Close ends the connection.
func (p *Publisher) Close() error {
	if err := p.conn.Close(); err != nil && status.Code(err) != codes.Canceled { // it is closed already
		return err
	}
	return nil
}

// Publish sends the messages beside each other and waits for their confirmations: see [relay.Publisher].
func (p *Publisher) Publish(ctx context.Context, ms []relay.Message) []error {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	errs := make([]error, len(ms))
	var wg sync.WaitGroup
	for i, m := range ms {
		wg.Go(func() { errs[i] = p.send(ctx, m) })
	}
	wg.Wait()
	return errs
}

// send sends one message. Messages of different groups cannot share a request.
func (p *Publisher) send(ctx context.Context, m relay.Message) error {
	topic := cmp.Or(m.Destination, p.topic)
	answer, err := p.conn.SendMessage(ctx, &v2.SendMessageRequest{Messages: []*v2.Message{message(topic, m)}})
	return p.outcome(topic, err, answer.GetStatus())
}
