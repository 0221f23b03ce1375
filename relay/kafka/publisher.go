package kafka

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/relay"
)

const (
	// window is how many records may be unconfirmed; more wait.
	window = 512
	// usualLimit is how large a batch is that Kafka takes by default, and leastLimit how small the client lets one be.
	usualLimit = 1000012
	leastLimit = 512
	mostLimit  = 1 << 30
)

// errUnconfirmed is a record that the cluster may have, or get later.
var errUnconfirmed = errors.New("it has not confirmed the message")

// Publisher publishes events to topics. A message's Destination is the topic; empty means that of the URL.
type Publisher struct {
	target
	kafka *kgo.Client
	alone sync.RWMutex // locked by who wants the only record under way to be their own

	mu    sync.Mutex
	found map[string]int32 // topics that were there, and how large a batch each takes
}

// NewPublisher makes a publisher from a URL, without connecting.
func NewPublisher(url string, config Config) (*Publisher, error) {
	t, err := parse(url, config)
	if err != nil {
		return nil, err
	}
	p := &Publisher{target: t, found: make(map[string]int32)}
	p.kafka, err = t.client(
		kgo.RequiredAcks(kgo.AllISRAcks()), kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)), kgo.MaxBufferedRecords(window),
		kgo.ProducerLinger(time.Millisecond), kgo.RecordDeliveryTimeout(answerLimit), kgo.ProducerBatchMaxBytesFn(p.limit),
		kgo.ProducerOnDataLossDetected(func(topic string, partition int32) {
			t.log.Error("a partition has lost messages that it had confirmed", "topic", topic, "partition", partition)
		}))
	return p, err
}

// Connect looks once whether Kafka answers, takes the credentials, and has the topic or may create it: see [relay.Connection].
func (p *Publisher) Connect(ctx context.Context) error {
	return p.find(ctx, p.kafka, p.topic)
}

// Examine says by which settings of the topic Kafka may lose what it has confirmed, one sentence each. It needs the right to describe
// the topic's configuration.
func (p *Publisher) Examine(ctx context.Context) ([]string, error) { return p.examine(ctx, p.kafka) }

// Close ends the connections.
func (p *Publisher) Close() error {
	p.kafka.Close()
	return nil
}

// Publish produces the messages and waits for their confirmations: see [relay.Publisher].
func (p *Publisher) Publish(ctx context.Context, ms []relay.Message) []error {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	errs := make([]error, len(ms))
	refused := make(map[string]error)
	sent := make([]int, 0, len(ms))
	for i, m := range ms {
		topic := p.topicOf(m)
		if _, asked := refused[topic]; !asked {
			refused[topic] = p.look(ctx, topic)
		}
		if errs[i] = refused[topic]; errs[i] == nil {
			sent = append(sent, i)
		}
	}
	p.alone.RLock()
	p.produce(ctx, ms, sent, errs)
	p.alone.RUnlock()
	for _, i := range sent {
		if isAboutMessage(errs[i]) { // or about another one of its batch
			errs[i] = p.produceAlone(ctx, ms[i])
		}
		if errs[i] != nil && !bus.IsPermanent(errs[i]) {
			p.forget(p.topicOf(ms[i]), errs[i])
			errs[i] = classify(errs[i])
		}
	}
	return errs
}

// produce gives some of the messages to the client, and waits for them. What has no answer when ctx ends stays with the client, which
// may still send it, before all that is produced later.
func (p *Publisher) produce(ctx context.Context, ms []relay.Message, which []int, errs []error) {
	type outcome struct {
		message int
		err     error
	}
	outcomes := make(chan outcome, len(which))
	for _, i := range which {
		errs[i] = errUnconfirmed
		p.kafka.Produce(ctx, record(p.topicOf(ms[i]), ms[i]), func(_ *kgo.Record, err error) { outcomes <- outcome{i, err} })
	}
	for range which {
		select {
		case o := <-outcomes:
			errs[o.message] = o.err
		case <-ctx.Done():
			return
		}
	}
}

// produceAlone produces a message whose batch was refused while no other is under way, so that the answer is about this one.
func (p *Publisher) produceAlone(ctx context.Context, m relay.Message) error {
	p.alone.Lock()
	defer p.alone.Unlock()
	errs := make([]error, 1)
	if p.produce(ctx, []relay.Message{m}, []int{0}, errs); isAboutMessage(errs[0]) {
		return bus.Permanent(fmt.Errorf("kafka: the message has %d bytes: %w", len(m.Body), errs[0]))
	}
	return errs[0]
}

// isAboutMessage reports whether an error will be the same whenever the message is sent.
func isAboutMessage(err error) bool {
	return errors.Is(err, kerr.MessageTooLarge) || errors.Is(err, kerr.RecordListTooLarge) || errors.Is(err, kerr.InvalidRecord)
}

func (p *Publisher) topicOf(m relay.Message) string {
	if m.Destination != "" {
		return m.Destination
	}
	return p.topic
}

// look makes sure that a topic was there when it was last used, and learns how much it takes.
func (p *Publisher) look(ctx context.Context, topic string) error {
	p.mu.Lock()
	_, found := p.found[topic]
	p.mu.Unlock()
	if found {
		return nil
	}
	if err := p.find(ctx, p.kafka, topic); err != nil {
		return err
	}
	limit := int32(usualLimit)
	of, err := settings(ctx, p.kafka, topic)
	if n, bad := strconv.ParseInt(of["max.message.bytes"], 10, 32); err == nil && bad == nil { // it takes a right that we may not have
		limit = int32(min(max(n, leastLimit), mostLimit))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.found[topic] = limit
	return nil
}

// limit is how large a batch for a topic may be.
func (p *Publisher) limit(topic string) int32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if limit, ok := p.found[topic]; ok {
		return limit
	}
	return usualLimit
}

// forget has a topic looked for again, because the client does not say why it waits. A topic that was missing is looked for by the client,
// too, which knows it by an id that it no longer has.
func (p *Publisher) forget(topic string, because error) {
	p.mu.Lock()
	delete(p.found, topic)
	p.mu.Unlock()
	if isMissing(because) {
		p.kafka.PurgeTopicsFromProducing(topic)
	}
}
