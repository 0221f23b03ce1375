package nats

import (
	"context"
	"errors"

	"github.com/nats-io/nats.go/jetstream"
)

// consumer is the durable consumer, from which nothing is outstanding, and the number of the next message that it gives out. One that has
// given out what nobody has acknowledged is made again behind the last acknowledged message: the server would give later ones first.
func (s *Subscriber) consumer(ctx context.Context, js jetstream.JetStream) (c jetstream.Consumer, next uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 4*s.cfg.Timeout)
	defer cancel()
	from, c, err := s.position(ctx, js)
	if err == nil && c == nil {
		c, err = s.remake(ctx, js, from)
	}
	if err != nil {
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			s.forget()
		}
		return nil, 0, refusal(wrap("prepare the consumer of", s.stream, err))
	}
	return c, c.CachedInfo().Delivered.Consumer + 1, nil
}

// position is the consumer if it can be used as it is, and else where a new one has to begin.
func (s *Subscriber) position(ctx context.Context, js jetstream.JetStream) (from uint64, c jetstream.Consumer, err error) {
	c, err = js.Consumer(ctx, s.stream, s.cfg.Durable)
	switch {
	case errors.Is(err, jetstream.ErrConsumerNotFound): // it has never been made, or we have died while it was made again
		kept, err := js.Consumer(ctx, s.stream, s.spare())
		if errors.Is(err, jetstream.ErrConsumerNotFound) {
			return 0, nil, nil
		} else if err != nil {
			return 0, nil, err
		}
		return kept.CachedInfo().Config.OptStartSeq, nil, nil
	case err != nil:
		return 0, nil, err
	}
	if info := c.CachedInfo(); info.NumAckPending > 0 {
		return max(info.AckFloor.Stream+1, info.Config.OptStartSeq), nil, nil
	}
	return 0, c, nil
}

// spare names the consumer that keeps the place while the other does not exist.
func (s *Subscriber) spare() string { return s.cfg.Durable + "-place" }

// remake makes the consumer so that it begins at from, 0 for the beginning of the stream.
func (s *Subscriber) remake(ctx context.Context, js jetstream.JetStream, from uint64) (jetstream.Consumer, error) {
	if from > 0 {
		if err := remove(ctx, js, s.stream, s.spare()); err != nil {
			return nil, err
		}
		if _, err := js.CreateConsumer(ctx, s.stream, config(s.spare(), from)); err != nil {
			return nil, err
		}
		if err := remove(ctx, js, s.stream, s.cfg.Durable); err != nil {
			return nil, err
		}
	}
	c, err := js.CreateConsumer(ctx, s.stream, config(s.cfg.Durable, from))
	if err == nil && from > 0 {
		err = remove(ctx, js, s.stream, s.spare())
	}
	return c, err
}

func remove(ctx context.Context, js jetstream.JetStream, stream, consumer string) error {
	if err := js.DeleteConsumer(ctx, stream, consumer); !errors.Is(err, jetstream.ErrConsumerNotFound) {
		return err
	}
	return nil
}

func config(durable string, from uint64) jetstream.ConsumerConfig {
	cfg := jetstream.ConsumerConfig{
		Durable: durable, AckPolicy: jetstream.AckExplicitPolicy, AckWait: ackWait, MaxDeliver: -1, MaxAckPending: 2 * perFetch,
		DeliverPolicy: jetstream.DeliverAllPolicy,
	}
	if from > 0 {
		cfg.DeliverPolicy, cfg.OptStartSeq = jetstream.DeliverByStartSequencePolicy, from
	}
	return cfg
}

// Lag is how many messages of the stream the consumer has not acknowledged: see [relay.Lagging].
func (s *Subscriber) Lag(ctx context.Context) (int64, error) {
	js, _, err := s.open(ctx)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	c, err := js.Consumer(ctx, s.stream, s.cfg.Durable)
	if errors.Is(err, jetstream.ErrConsumerNotFound) { // it has received nothing yet
		stream, err := js.Stream(ctx, s.stream)
		if err != nil {
			return 0, refusal(wrap("look at", s.stream, err))
		}
		return int64(stream.CachedInfo().State.Msgs), nil
	}
	if err != nil {
		return 0, refusal(wrap("look at the consumer of", s.stream, err))
	}
	info := c.CachedInfo()
	return int64(info.NumPending) + int64(info.NumAckPending), nil
}
