package rocketmq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/bluecone-go/bluecone/relay"
)

const (
	batch = 32 // messages at a time; RocketMQ gives no more
	// hidden is how long a queue is closed to other instances after its messages were given out, if they are not acknowledged.
	hidden = 15 * time.Second
	// poll is how long RocketMQ waits for a message before it answers that there is none. It takes no less.
	poll = 5 * time.Second
	// beat is how often the proxy has to hear of a subscriber.
	beat = 10 * time.Second
	// leastAttempts is how often a group has to deliver a message before it gives it up.
	leastAttempts = 100_000
)

var errNotLanded = errors.New("landing failed")

// Subscriber receives from a topic, as a member of a consumer group, which it cannot create.
type Subscriber struct {
	target
	group string
	id    string // by which RocketMQ gives out again what was given to this subscriber and is not acknowledged

	mu       sync.Mutex
	isClosed bool
	stop     context.CancelFunc // ends Receive; nil while it does not run
	conn     *conn              // by which messages come; nil while there is none
}

// NewSubscriber makes a subscriber from a URL, without connecting.
func NewSubscriber(url string, config Config) (*Subscriber, error) {
	t, err := parse(url, config)
	if err != nil {
		return nil, err
	}
	return &Subscriber{target: t, group: cmp.Or(config.Group, "bluecone"), id: uuid.NewString()}, nil
}

// Connect looks once whether the proxy answers, takes the credentials, and has the topic and the group: see [relay.Connection].
func (s *Subscriber) Connect(ctx context.Context) error {
	c, err := s.dial()
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = s.join(ctx, c)
	return err
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

// reach is what a subscriber knows of the way to RocketMQ.
type reach struct {
	ever   bool        // whether it has been in the group
	isAway atomic.Bool // whether nothing can be received, which was said
}

// Receive lands the messages of each queue in their order: see [relay.Subscriber].
func (s *Subscriber) Receive(ctx context.Context, in relay.Sink) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.mu.Lock()
	s.stop = cancel
	if s.isClosed {
		cancel()
	}
	s.mu.Unlock()
	var r reach
	for wait := firstPause; ctx.Err() == nil; wait = min(2*wait, mostPause) {
		began := time.Now()
		err := s.session(ctx, in, &r)
		if errors.Is(err, relay.ErrRefused) && !r.ever {
			return err
		}
		if time.Since(began) > hidden {
			wait = firstPause // it was well for a while
		}
		s.away(ctx, &r, wait, err, in)
	}
	return nil
}

// away says once that nothing can be received, and waits before the next try.
func (s *Subscriber) away(ctx context.Context, r *reach, wait time.Duration, err error, in relay.Sink) {
	in.Away(err)
	if ctx.Err() == nil && !r.isAway.Swap(true) {
		s.log.WarnContext(ctx, "nothing can be received now, it is tried again", "error", err)
	}
	pause(ctx, wait)
}

// session is a member of the group, until something goes wrong.
func (s *Subscriber) session(ctx context.Context, in relay.Sink, r *reach) error {
	c, err := s.dial()
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	brokers, err := s.join(ctx, c)
	if err != nil {
		return err
	}
	r.ever = true
	s.enter(c)
	defer s.enter(nil)
	var wg sync.WaitGroup
	for _, broker := range brokers {
		wg.Go(func() { cancel(s.receive(ctx, c, broker, in, r)) })
	}
	wg.Wait()
	return context.Cause(ctx)
}

// join tells the proxy who receives what, which it has to know before it gives out messages, and returns the brokers of the topic. The
// membership ends with ctx.
func (s *Subscriber) join(ctx context.Context, c *conn) ([]*v2.MessageQueue, error) {
	brokers, err := s.brokers(ctx, c)
	if err != nil {
		return nil, err
	}
	stream, err := c.Telemetry(ctx)
	if err != nil {
		return nil, classify(err)
	}
	kind := v2.ClientType_SIMPLE_CONSUMER
	settings := &v2.Settings{
		ClientType: &kind, RequestTimeout: durationpb.New(answerLimit), UserAgent: &v2.UA{Language: v2.Language_GOLANG},
		PubSub: &v2.Settings_Subscription{Subscription: &v2.Subscription{
			Group: resource(s.group), LongPollingTimeout: durationpb.New(poll),
			Subscriptions: []*v2.SubscriptionEntry{{Topic: resource(s.topic), Expression: everything()}},
		}},
	}
	err = stream.Send(&v2.TelemetryCommand{Command: &v2.TelemetryCommand_Settings{Settings: settings}})
	if err != nil && !errors.Is(err, io.EOF) { // then Recv says why
		return nil, classify(err)
	}
	answer, err := within(ctx, answerLimit, stream.Recv)
	if err = answered(err, answer.GetStatus()); err != nil {
		return nil, classify(err)
	}
	return brokers, classify(s.suits(answer.GetSettings()))
}

// suits is an error if the group keeps no order, or gives messages up.
func (s *Subscriber) suits(settings *v2.Settings) error {
	if !settings.GetSubscription().GetFifo() {
		return errGroup(s.group, "is not there, or not orderly, and a client of the proxy cannot create it")
	}
	if n := settings.GetBackoffPolicy().GetMaxAttempts(); n < leastAttempts {
		return errGroup(s.group, fmt.Sprintf("gives a message up after %d deliveries, and nobody would land it", n))
	}
	return nil
}

func everything() *v2.FilterExpression {
	return &v2.FilterExpression{Type: v2.FilterType_TAG, Expression: "*"}
}

// receive lands what one broker has, until something goes wrong that needs another session.
func (s *Subscriber) receive(ctx context.Context, c *conn, broker *v2.MessageQueue, in relay.Sink, r *reach) error {
	wait, heard := firstPause, time.Now()
	for {
		if err := in.Ready(ctx, ""); err != nil {
			return err
		}
		if time.Since(heard) > beat {
			if err := s.heartbeat(ctx, c); err != nil {
				return err
			}
			heard = time.Now()
		}
		switch err := s.turn(ctx, c, broker, in); {
		case errors.Is(err, errNotLanded):
			s.away(ctx, r, wait, err, in)
			wait = min(2*wait, mostPause)
		case err != nil:
			return err
		case r.isAway.Swap(false):
			s.log.InfoContext(ctx, "messages can be received again")
			wait = firstPause
		}
	}
}

func (s *Subscriber) heartbeat(ctx context.Context, c *conn) error {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	answer, err := c.Heartbeat(ctx, &v2.HeartbeatRequest{Group: resource(s.group), ClientType: v2.ClientType_SIMPLE_CONSUMER})
	return classify(answered(err, answer.GetStatus()))
}

// turn fetches once, lands the messages of each queue beside those of others, and acknowledges them.
func (s *Subscriber) turn(ctx context.Context, c *conn, broker *v2.MessageQueue, in relay.Sink) error {
	fetched, err := s.fetch(ctx, c, broker)
	if err != nil {
		return err
	}
	queues := make(map[int32][]*v2.Message)
	for _, m := range fetched {
		queue := m.GetSystemProperties().GetQueueId()
		queues[queue] = append(queues[queue], m)
	}
	errs, n := make([]error, len(queues)), 0
	var wg sync.WaitGroup
	for _, messages := range queues {
		at := n
		n++
		wg.Go(func() { errs[at] = s.land(ctx, c, broker.GetBroker().GetName(), messages, in) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// fetch returns the first messages that are not acknowledged, of queues that no other instance has.
func (s *Subscriber) fetch(ctx context.Context, c *conn, broker *v2.MessageQueue) ([]*v2.Message, error) {
	ctx, cancel := context.WithTimeout(ctx, poll+answerLimit)
	defer cancel()
	stream, err := c.ReceiveMessage(ctx, &v2.ReceiveMessageRequest{
		Group: resource(s.group), MessageQueue: broker, FilterExpression: everything(), BatchSize: batch,
		InvisibleDuration: durationpb.New(hidden), LongPollingTimeout: durationpb.New(poll), AttemptId: &s.id,
	})
	if err != nil {
		return nil, classify(err)
	}
	var messages []*v2.Message
	var answer *v2.Status
	for {
		part, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF) && answer.GetCode() == v2.Code_MESSAGE_NOT_FOUND:
			return nil, nil
		case errors.Is(err, io.EOF):
			return messages, classify(answered(nil, answer))
		case err != nil:
			return nil, classify(err)
		case part.GetMessage() != nil:
			messages = append(messages, part.GetMessage())
		case part.GetStatus() != nil:
			answer = part.GetStatus()
		}
	}
}

// land lands messages of one queue, and acknowledges them.
func (s *Subscriber) land(ctx context.Context, c *conn, broker string, messages []*v2.Message, in relay.Sink) error {
	slices.SortFunc(messages, func(a, b *v2.Message) int {
		return cmp.Compare(a.GetSystemProperties().GetQueueOffset(), b.GetSystemProperties().GetQueueOffset())
	})
	all := make([]relay.Received, len(messages))
	entries := make([]*v2.AckMessageEntry, len(messages))
	for i, m := range messages {
		system := m.GetSystemProperties()
		all[i] = received(s.topic, broker, m)
		entries[i] = &v2.AckMessageEntry{MessageId: system.GetMessageId(), ReceiptHandle: system.GetReceiptHandle()}
	}
	if err := in.Land(ctx, all); err != nil {
		return fmt.Errorf("%w: %w", errNotLanded, err)
	}
	return s.acknowledge(ctx, c, entries)
}

// acknowledge tells the broker what has landed, also when the subscriber is about to end. What it does not take comes again.
func (s *Subscriber) acknowledge(ctx context.Context, c *conn, entries []*v2.AckMessageEntry) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerLimit)
	defer cancel()
	answer, err := c.AckMessage(ctx, &v2.AckMessageRequest{Group: resource(s.group), Topic: resource(s.topic), Entries: entries})
	if code := answer.GetStatus().GetCode(); code == v2.Code_INVALID_RECEIPT_HANDLE || code == v2.Code_MULTIPLE_RESULTS {
		return nil // they were given out again meanwhile
	}
	return classify(answered(err, answer.GetStatus()))
}

// within waits for an answer that has no limit of its own. It ends with ctx.
func within[T any](ctx context.Context, limit time.Duration, ask func() (T, error)) (T, error) {
	type outcome struct {
		answer T
		err    error
	}
	got := make(chan outcome, 1)
	go func() {
		answer, err := ask()
		got <- outcome{answer, err}
	}()
	select {
	case o := <-got:
		return o.answer, o.err
	case <-time.After(limit):
		var none T
		return none, fmt.Errorf("no answer within %v: %w", limit, context.DeadlineExceeded)
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// enter keeps the connection by which messages come, nil for none.
func (s *Subscriber) enter(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn = c
}

// Lag asks whether the proxy answers, and is -1: it does not tell clients how far they are behind. See [relay.Lagging].
func (s *Subscriber) Lag(ctx context.Context) (int64, error) {
	s.mu.Lock()
	c := s.conn
	s.mu.Unlock()
	if c == nil {
		var err error
		if c, err = s.dial(); err != nil {
			return -1, err
		}
		defer c.Close()
	}
	_, err := s.brokers(ctx, c)
	return -1, err
}
