package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/relay"
)

// window is how many messages may be unconfirmed. So many returns fit into their channel: the client drops one that nobody reads,
// and the message would look confirmed.
const window = 512

var (
	errClosed   = errors.New("rabbitmq: the publisher is closed")
	errReturned = fmt.Errorf("rabbitmq: %w: no queue is bound to the exchange, so the message came back", relay.ErrRefused)
	errNack     = errors.New("rabbitmq: the queue did not take the message")
	errBlocked  = errors.New("rabbitmq: the server is short of memory or disk, and takes nothing")
	errBeside   = errors.New("rabbitmq: a message beside this one was too large, and the server closed the channel")
)

// Publisher publishes events to a topic exchange, by one connection. A message's Destination is its routing key.
type Publisher struct {
	target
	turn chan struct{} // who has put something into it may use what is below

	session  *session // nil while there is no connection
	returns  chan amqp.Return
	returned map[string]bool // ids of messages that came back
	blocked  bool
	most     int // bytes of the largest body that the server takes, 0 while nobody knows
	isClosed bool
}

// NewPublisher makes a publisher from a URL, without connecting.
func NewPublisher(url string, config Config) (*Publisher, error) {
	t, err := parse(url, config)
	if err != nil {
		return nil, err
	}
	return &Publisher{target: t, turn: make(chan struct{}, 1)}, nil
}

// Publish sends the messages and waits for their confirmations: see [relay.Publisher].
func (p *Publisher) Publish(ctx context.Context, ms []relay.Message) []error {
	errs := make([]error, len(ms))
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-ctx.Done():
		return fill(errs, bus.Unavailable(ctx.Err()))
	}
	for first := 0; first < len(ms); first += window {
		last := min(first+window, len(ms))
		p.publish(ctx, ms[first:last], errs[first:last])
	}
	return errs
}

// Close ends the connection.
func (p *Publisher) Close() error {
	p.turn <- struct{}{}
	defer func() { <-p.turn }()
	p.isClosed = true
	p.leave()
	return nil
}

func (p *Publisher) leave() {
	if p.session != nil {
		p.session.close()
		p.session = nil
	}
}

func fill(errs []error, err error) []error {
	for i := range errs {
		errs[i] = err
	}
	return errs
}

// enter makes sure that there is a connection which takes messages.
func (p *Publisher) enter(ctx context.Context) error {
	if p.isClosed {
		return bus.Unavailable(errClosed)
	}
	if p.session != nil && p.session.channel.IsClosed() {
		p.leave()
	}
	if p.session == nil {
		s, err := p.open(ctx)
		if err != nil {
			return err
		}
		if err := s.channel.Confirm(false); err != nil {
			s.close()
			return classify(err)
		}
		p.session, p.blocked, p.returned = s, false, make(map[string]bool)
		p.returns = s.channel.NotifyReturn(make(chan amqp.Return, window))
	}
	p.hear()
	if p.blocked {
		return bus.Unavailable(errBlocked)
	}
	return nil
}

// hear takes what the server has said beside confirmations. A return is there before the confirmation of its message.
func (p *Publisher) hear() {
	for {
		select {
		case r, ok := <-p.returns:
			if !ok {
				p.returns = nil
				continue
			}
			p.returned[r.MessageId] = true
		case b, ok := <-p.session.blocked:
			if !ok {
				p.session.blocked = nil
				continue
			}
			p.blocked = b.Active
		default:
			return
		}
	}
}

func (p *Publisher) publish(ctx context.Context, ms []relay.Message, errs []error) {
	if err := p.enter(ctx); err != nil {
		fill(errs, err)
		return
	}
	confirming, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	confirms := make([]*amqp.DeferredConfirmation, len(ms))
	for i, m := range ms {
		var message amqp.Publishing
		if message, errs[i] = publishing(m); errs[i] != nil {
			continue
		}
		if errs[i] = p.tooLarge(m); errs[i] != nil {
			continue
		}
		var err error
		if confirms[i], err = p.session.channel.PublishWithDeferredConfirm(p.exchange, routingKey(m), true, false, message); err != nil {
			errs[i] = classify(err)
		}
	}
	for i, c := range confirms {
		if c != nil && errs[i] == nil {
			errs[i] = p.outcome(confirming, c, cut(ms[i].ID))
		}
	}
	if p.session.channel.IsClosed() {
		p.explain(ms, errs)
		p.leave()
	} else if len(p.returned) > 0 || confirming.Err() != nil && ctx.Err() == nil {
		p.leave() // the next call declares the queue again, or finds a server that answers
	}
}

// outcome waits for a confirmation.
func (p *Publisher) outcome(ctx context.Context, c *amqp.DeferredConfirmation, id string) error {
	isTaken, err := c.WaitContext(ctx)
	p.hear()
	switch {
	case err != nil && p.blocked:
		return bus.Unavailable(errBlocked)
	case err != nil:
		return bus.Unavailable(fmt.Errorf("rabbitmq: it has not confirmed the message: %w", err))
	case !isTaken:
		return bus.Unavailable(errNack)
	case p.returned[id]:
		return bus.Unavailable(errReturned)
	default:
		return nil
	}
}

var sizeLimit = regexp.MustCompile(`larger than (?:configured )?max size (\d+)`)

// explain replaces what a closed channel has made of the confirmations by the reason for which it was closed.
func (p *Publisher) explain(ms []relay.Message, errs []error) {
	reason := errors.New("the connection broke")
	select {
	case e := <-p.session.closed:
		if e != nil {
			reason = e
		}
	case <-time.After(time.Second):
	}
	known := sizeLimit.FindStringSubmatch(reason.Error())
	if known != nil {
		p.most, _ = strconv.Atoi(known[1]) // it is a number
	}
	for i, m := range ms {
		switch {
		case errs[i] == nil || bus.IsPermanent(errs[i]):
		case known == nil:
			errs[i] = classify(reason)
		default:
			if errs[i] = p.tooLarge(m); errs[i] == nil {
				errs[i] = bus.Unavailable(errBeside)
			}
		}
	}
}

// tooLarge is an error if the server has said that it does not take so much. It closes the channel when it gets more, and with it
// all messages around, so it is asked only once.
func (p *Publisher) tooLarge(m relay.Message) error {
	if p.most == 0 || len(m.Body) <= p.most {
		return nil
	}
	return bus.Permanent(fmt.Errorf("rabbitmq: the message has %d bytes, and the server takes %d (max_message_size)", len(m.Body), p.most))
}
