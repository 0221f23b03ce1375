package rabbitmq

import (
	"context"

	amqp "github.com/rabbitmq/amqp091-go"
)

// enter keeps the session by which messages come, nil for none.
func (s *Subscriber) enter(session *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.session = session
}

// Lag is how many messages wait in the queue: see [relay.Lagging]. Up to two hundred that the subscriber has and has not
// acknowledged are not among them.
func (s *Subscriber) Lag(ctx context.Context) (int64, error) {
	s.mu.Lock()
	session := s.session
	s.mu.Unlock()
	if session == nil {
		var err error
		if session, err = s.open(ctx); err != nil {
			return 0, err
		}
		defer session.close()
	}
	type answer struct {
		queue amqp.Queue
		err   error
	}
	answered := make(chan answer, 1)
	go func() { // the client does not look at ctx; it ends with the session
		queue, err := s.look(session.conn)
		answered <- answer{queue, err}
	}()
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	select {
	case a := <-answered:
		return int64(a.queue.Messages), classify(a.err)
	case <-ctx.Done():
		return 0, classify(ctx.Err())
	}
}

// look asks for the queue by a channel of its own: a refusal ends it.
func (s *Subscriber) look(conn *amqp.Connection) (amqp.Queue, error) {
	channel, err := conn.Channel()
	if err != nil {
		return amqp.Queue{}, err
	}
	defer channel.Close()
	return channel.QueueDeclarePassive(s.queue, true, false, false, false, nil)
}
