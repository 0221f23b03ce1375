package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/bluecone-go/bluecone/relay"
)

const (
	batch      = 200 // messages at a time
	firstPause = 100 * time.Millisecond
	mostPause  = 3 * time.Second
	// RabbitMQ closes the channel of who keeps a message for 30 minutes, and counts each delivery.
	holdLimit = 10 * time.Minute
	// gatherFor is how long a message waits for others that land with it.
	gatherFor = 2 * time.Millisecond
	// A subscriber without room keeps what it has for so long, and then gives it back.
	roomLimit = time.Second
)

var errNoRoom = errors.New("there is no room")

// Subscriber receives from the queue "<exchange>.inbox".
type Subscriber struct {
	target
	mu       sync.Mutex
	isClosed bool
	stop     context.CancelFunc // ends Receive; nil while it does not run
	session  *session           // by which messages come; nil while there is none
}

// NewSubscriber makes a subscriber from a URL, without connecting.
func NewSubscriber(url string, config Config) (*Subscriber, error) {
	t, err := parse(url, config)
	if err != nil {
		return nil, err
	}
	return &Subscriber{target: t}, nil
}

// Close ends Receive.
func (s *Subscriber) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.isClosed = true
	if s.stop != nil {
		s.stop()
	}
	return nil
}

// Receive lands the messages of the queue in their order: see [relay.Subscriber].
func (s *Subscriber) Receive(ctx context.Context, in relay.Sink) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.mu.Lock()
	s.stop = cancel
	if s.isClosed {
		cancel()
	}
	s.mu.Unlock()
	hasConnected, wait := false, time.Duration(0)
	for ctx.Err() == nil {
		err := s.consume(ctx, in, func() {
			if hasConnected = true; wait > 0 {
				s.log.InfoContext(ctx, "messages can be received again")
				wait = 0
			}
		})
		switch {
		case ctx.Err() != nil || errors.Is(err, errNoRoom):
			continue
		case errors.Is(err, relay.ErrRefused) && !hasConnected:
			return err
		case wait == 0:
			in.Away(err)
			s.log.WarnContext(ctx, "nothing can be received now, it is tried again", "error", err)
			wait = firstPause
		}
		pause(ctx, wait)
		wait = min(2*wait, mostPause)
	}
	return nil
}

// consume waits for room, and then receives by a connection of its own until that breaks, or there is no room any more.
func (s *Subscriber) consume(ctx context.Context, in relay.Sink, connected func()) error {
	if err := in.Ready(ctx, ""); err != nil {
		return err
	}
	session, err := s.open(ctx)
	if err != nil {
		return err
	}
	defer session.close() // what is not acknowledged goes back to the queue, in its order
	if err := session.channel.Qos(batch, 0, false); err != nil {
		return classify(err)
	}
	deliveries, err := session.channel.Consume(s.queue, "", false, false, false, false, nil)
	if err != nil {
		return classify(err)
	}
	connected()
	s.enter(session)
	defer s.enter(nil)
	for {
		got, err := s.next(ctx, session, deliveries)
		if err != nil {
			return err
		}
		if err := s.land(ctx, in, got); err != nil {
			return err
		}
		if err := got[len(got)-1].Ack(true); err != nil {
			return classify(err)
		}
		if err := ready(ctx, in); err != nil {
			return err
		}
	}
}

// next waits for a message and takes what else is there. The client hands over one at a time, by a goroutine that has to get its turn.
func (s *Subscriber) next(ctx context.Context, session *session, deliveries <-chan amqp.Delivery) ([]amqp.Delivery, error) {
	var got []amqp.Delivery
	select {
	case d, ok := <-deliveries:
		if !ok {
			return nil, classify(ended(session))
		}
		got = append(got, d)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	over := time.NewTimer(gatherFor)
	defer over.Stop()
	for len(got) < batch {
		select {
		case d, ok := <-deliveries:
			if !ok {
				return nil, classify(ended(session))
			}
			got = append(got, d)
		case <-over.C:
			return got, nil
		}
	}
	return got, nil
}

// ended says why deliveries have: the channel was closed, or the queue was deleted.
func ended(session *session) error {
	select {
	case e := <-session.closed:
		if e != nil {
			return e
		}
	case <-time.After(time.Second):
	}
	return errors.New("the connection broke, or the queue is gone")
}

// land tries until the messages have landed. It does not give them back while the database is away for a shorter time: RabbitMQ
// counts deliveries, and drops a message that has had too many.
func (s *Subscriber) land(ctx context.Context, in relay.Sink, got []amqp.Delivery) error {
	messages := make([]relay.Received, len(got))
	for i, d := range got {
		messages[i] = s.received(d)
	}
	wait := firstPause
	for until := time.Now().Add(holdLimit); ; wait = min(2*wait, mostPause) {
		err := in.Land(ctx, messages)
		if err == nil || ctx.Err() != nil {
			return err
		}
		if wait == firstPause {
			in.Away(err)
			s.log.WarnContext(ctx, "messages cannot be landed now, it is tried again", "error", err)
		}
		if time.Now().After(until) {
			return fmt.Errorf("landing failed: %w", err)
		}
		pause(ctx, wait)
	}
}

// ready asks whether there is still room. Messages that the client has fetched meanwhile must not wait long.
func ready(ctx context.Context, in relay.Sink) error {
	soon, cancel := context.WithTimeout(ctx, roomLimit)
	defer cancel()
	if err := in.Ready(soon, ""); err != nil {
		return errNoRoom // or ctx has ended, which the caller sees
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
