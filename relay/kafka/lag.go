package kafka

import (
	"context"
	"errors"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// enter keeps the client that receives, nil for none.
func (s *Subscriber) enter(client *kgo.Client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.member = client
}

// Lag is how many records of the topic lie behind the offsets that the group has committed: see [relay.Lagging].
func (s *Subscriber) Lag(ctx context.Context) (int64, error) {
	s.mu.Lock()
	client := s.member
	s.mu.Unlock()
	if client == nil {
		var err error
		if client, err = s.client(); err != nil {
			return 0, err
		}
		defer client.Close()
	}
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	n, err := s.lag(ctx, kadm.NewClient(client))
	return n, classify(err)
}

func (s *Subscriber) lag(ctx context.Context, admin *kadm.Client) (n int64, err error) {
	committed, err := admin.FetchOffsets(ctx, s.group)
	if err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
		return 0, err
	}
	starts, err := admin.ListStartOffsets(ctx, s.topic)
	if err != nil {
		return 0, err
	}
	ends, err := admin.ListEndOffsets(ctx, s.topic)
	if err != nil {
		return 0, err
	}
	for partition, end := range ends[s.topic] {
		if end.Err != nil {
			return 0, end.Err
		}
		from := starts[s.topic][partition].Offset
		if at, ok := committed.Lookup(s.topic, partition); ok {
			from = max(from, at.At)
		}
		n += max(end.Offset-from, 0)
	}
	return n, nil
}
