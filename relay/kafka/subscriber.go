package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/bluecone-go/bluecone/relay"
)

const (
	batch      = 500 // records at a time
	firstPause = 100 * time.Millisecond
	mostPause  = 3 * time.Second
	// sessionLimit is after how long without a word the group gives the partitions of an instance to others.
	sessionLimit = 10 * time.Second
	// rebalanceLimit is how long the group waits for an instance that has to give up a partition, and landLimit how long the landing that
	// it waits for may take.
	rebalanceLimit = time.Minute
	landLimit      = rebalanceLimit / 2
	leaveLimit     = 2 * time.Second
)

var errNotLanded = errors.New("landing failed")

// Subscriber receives from a topic, as a member of a consumer group, which starts with the first record of each partition.
type Subscriber struct {
	target
	group string

	mu       sync.Mutex
	isClosed bool
	stop     context.CancelFunc // ends Receive; nil while it does not run
	member   *kgo.Client        // the one that receives; nil while there is none
}

// NewSubscriber makes a subscriber from a URL, without connecting.
func NewSubscriber(url string, config Config) (*Subscriber, error) {
	t, err := parse(url, config)
	if err != nil {
		return nil, err
	}
	return &Subscriber{target: t, group: cmp.Or(config.Group, "bluecone")}, nil
}

// Connect looks once whether Kafka answers, takes the credentials, and has the topic or may create it: see [relay.Connection].
func (s *Subscriber) Connect(ctx context.Context) error {
	client, err := s.client()
	if err != nil {
		return err
	}
	defer client.Close()
	return s.find(ctx, client, s.topic)
}

// Examine does what [Publisher.Examine] does.
func (s *Subscriber) Examine(ctx context.Context) ([]string, error) {
	client, err := s.client()
	if err != nil {
		return nil, err
	}
	defer client.Close()
	return s.examine(ctx, client)
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

// reach is what a subscriber knows of the way to Kafka.
type reach struct {
	ever atomic.Bool // whether it has been in the group
	lost bool        // records that were not read are gone
	wait time.Duration
}

// Receive lands the records of each partition in their order: see [relay.Subscriber].
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
	for ctx.Err() == nil {
		err := s.session(ctx, in, &r)
		if ctx.Err() != nil {
			break
		}
		if errors.Is(err, relay.ErrRefused) && !r.ever.Load() {
			return err
		}
		in.Away(err)
		s.away(ctx, &r, err)
	}
	return nil
}

// away says once that nothing can be received, and waits before the next try.
func (s *Subscriber) away(ctx context.Context, r *reach, err error) {
	if r.wait == 0 {
		s.log.WarnContext(ctx, "nothing can be received now, it is tried again", "error", err)
		r.wait = firstPause
	}
	pause(ctx, r.wait)
	r.wait = min(2*r.wait, mostPause)
}

// session is a member of the group, until something goes wrong that the client does not fix by itself.
func (s *Subscriber) session(ctx context.Context, in relay.Sink, r *reach) error {
	if err := s.Connect(ctx); err != nil {
		return err
	}
	client, err := s.join(r)
	if err != nil {
		return err
	}
	s.enter(client)
	defer func() {
		s.enter(nil)
		client.AllowRebalance()
		soon, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveLimit)
		defer cancel()
		_ = client.LeaveGroupContext(soon) // the group notices it by itself, after a while
		client.Close()
	}()
	for {
		switch err := s.turn(ctx, client, in); {
		case errors.Is(err, errNotLanded) && ctx.Err() == nil:
			in.Away(err)
			s.away(ctx, r, err)
		case err != nil:
			r.lost = errors.Is(err, kerr.OffsetOutOfRange)
			return err
		case r.wait > 0:
			s.log.InfoContext(ctx, "messages can be received again")
			r.wait = 0
		}
	}
}

// join makes a client that is a member of the group. An offset that is not there is an error, because the records from there on are
// lost; after that it starts with what is left.
func (s *Subscriber) join(r *reach) (*kgo.Client, error) {
	reset := kgo.NoResetOffset()
	if r.lost {
		reset = kgo.NewOffset().AtStart()
	}
	return s.client(
		kgo.ConsumeTopics(s.topic), kgo.ConsumerGroup(s.group), kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll(),
		kgo.SessionTimeout(sessionLimit), kgo.RebalanceTimeout(rebalanceLimit),
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()), kgo.ConsumeResetOffset(reset), kgo.FetchMaxBytes(8<<20),
		kgo.OnPartitionsAssigned(func(context.Context, *kgo.Client, map[string][]int32) { r.ever.Store(true) }))
}

// turn waits for room, polls once, lands what came, and commits its offsets. Meanwhile no partition goes to another instance.
func (s *Subscriber) turn(ctx context.Context, client *kgo.Client, in relay.Sink) error {
	if err := in.Ready(ctx, ""); err != nil {
		return err
	}
	fetches := client.PollRecords(ctx, batch)
	defer client.AllowRebalance()
	if err := s.errorOf(ctx, fetches); err != nil {
		return err
	}
	landed, failed, err := s.land(ctx, in, fetches)
	client.SetOffsets(failed)
	return cmp.Or(commit(ctx, client, landed), err)
}

// errorOf is an error that ends the session. What was lost is said.
func (s *Subscriber) errorOf(ctx context.Context, fetches kgo.Fetches) error {
	for _, e := range fetches.Errors() {
		var loss *kgo.ErrDataLoss
		switch {
		case errors.As(e.Err, &loss): // the client goes on with what is left
			s.log.ErrorContext(ctx, "a partition has lost messages that it had confirmed", "partition", e.Partition, "error", e.Err)
		case errors.Is(e.Err, kerr.OffsetOutOfRange):
			s.log.ErrorContext(ctx, "messages were removed before they had landed: they may be lost", "partition", e.Partition, "error", e.Err)
			return classify(e.Err)
		default:
			return classify(e.Err)
		}
	}
	return nil
}

// offsets are those of partitions, as the client takes them.
type offsets map[string]map[int32]kgo.EpochOffset

func (o offsets) set(p kgo.FetchTopicPartition, epoch int32, offset int64) {
	if o[p.Topic] == nil {
		o[p.Topic] = make(map[int32]kgo.EpochOffset)
	}
	o[p.Topic][p.Partition] = kgo.EpochOffset{Epoch: epoch, Offset: offset}
}

// land lands the records of each partition beside those of others. It returns where those that have landed end, and where the others
// have to come again.
func (s *Subscriber) land(ctx context.Context, in relay.Sink, fetches kgo.Fetches) (landed, failed offsets, err error) {
	ctx, cancel := context.WithTimeout(ctx, landLimit)
	defer cancel()
	landed, failed = make(offsets), make(offsets)
	var mu sync.Mutex
	var wg sync.WaitGroup
	fetches.EachPartition(func(p kgo.FetchTopicPartition) {
		if len(p.Records) == 0 {
			return
		}
		wg.Go(func() {
			messages := make([]relay.Received, len(p.Records))
			for i, record := range p.Records {
				messages[i] = received(record)
			}
			failure := in.Land(ctx, messages)
			mu.Lock()
			defer mu.Unlock()
			if first, last := p.Records[0], p.Records[len(p.Records)-1]; failure == nil {
				landed.set(p, last.LeaderEpoch, last.Offset+1)
			} else {
				failed.set(p, first.LeaderEpoch, first.Offset)
				err = fmt.Errorf("%w: %w", errNotLanded, failure)
			}
		})
	})
	wg.Wait()
	return landed, failed, err
}
