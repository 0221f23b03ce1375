package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/bluecone-go/bluecone/relay"
)

const (
	batch = 200 // entries at a time
	// Redis answers after so long if nothing comes. It is never 0: then a connection that is gone would not be noticed.
	block      = time.Second
	firstPause = 100 * time.Millisecond
	mostPause  = 3 * time.Second
	// consumer is one for all instances: only one of them reads at a time, and it has to see what was given to those before.
	consumer = "bluecone"
)

// Subscriber receives from a stream, as a consumer group. It creates the group, which starts with the first entry of the stream.
type Subscriber struct {
	Connection
	group string
}

// NewSubscriber makes a subscriber from a URL, without connecting.
func NewSubscriber(url string, config Config) (*Subscriber, error) {
	c, err := connection(url, config)
	if err != nil {
		return nil, err
	}
	if config.Group == "" {
		config.Group = "bluecone"
	}
	return &Subscriber{Connection: c, group: config.Group}, nil
}

// Connect does what [Connection.Connect] does, and creates the group.
func (s *Subscriber) Connect(ctx context.Context) error {
	if err := s.Connection.Connect(ctx); err != nil {
		return err
	}
	return s.createGroup(ctx)
}

func (s *Subscriber) createGroup(ctx context.Context) error {
	create := s.client.XGroupCreate
	if s.mayCreate {
		create = s.client.XGroupCreateMkStream
	}
	err := create(ctx, s.stream, s.group, "0").Err()
	switch {
	case err == nil || strings.HasPrefix(err.Error(), "BUSYGROUP"): // it is there
		return nil
	case strings.Contains(err.Error(), "requires the key to exist"):
		return classify(errMissing(s.stream))
	default:
		return classify(err)
	}
}

// Receive lands the entries of the stream in their order: see [relay.Subscriber].
func (s *Subscriber) Receive(ctx context.Context, in relay.Sink) error {
	var reach reach
	for ctx.Err() == nil {
		err := s.turn(ctx, in, &reach)
		if err == nil || ctx.Err() != nil {
			continue
		}
		if errors.Is(err, relay.ErrRefused) && !reach.ever {
			return err
		}
		in.Away(err)
		s.away(ctx, &reach, err)
	}
	return nil
}

// reach is what a subscriber knows of the way to Redis.
type reach struct {
	ever, now bool // whether it has ever been there, and is there now
	wait      time.Duration
}

// away says once that Redis, or the database of the sink, is away, and waits before the next try.
func (s *Subscriber) away(ctx context.Context, r *reach, err error) {
	if r.wait == 0 {
		s.log.WarnContext(ctx, "nothing can be received now, it is tried again", "error", err)
		r.wait = firstPause
	}
	r.now = false
	if pause(ctx, r.wait) {
		r.wait = min(2*r.wait, mostPause)
	}
}

// turn waits for room, fetches once, and lands what came.
func (s *Subscriber) turn(ctx context.Context, in relay.Sink, r *reach) error {
	if !r.now {
		if err := s.Connect(ctx); err != nil {
			return err
		}
		r.ever, r.now = true, true
	}
	if err := in.Ready(ctx, s.stream); err != nil {
		return err
	}
	entries, err := s.fetch(ctx)
	if err != nil {
		return err
	}
	if r.wait > 0 {
		s.log.InfoContext(ctx, "messages can be received again")
		r.wait = 0
	}
	if len(entries) == 0 {
		return nil
	}
	if err := in.Land(ctx, s.received(entries)); err != nil {
		return fmt.Errorf("landing failed: %w", err)
	}
	ids := make([]string, len(entries))
	for i, e := range entries {
		ids[i] = e.ID
	}
	return classify(s.client.XAck(ctx, s.stream, s.group, ids...).Err())
}

// fetch returns the first entries that are not acknowledged. New ones are right only if no others are pending: those of a turn that
// failed, of another instance, or of a fetch whose answer got lost, even one that Redis carries out only now. Then these come first.
func (s *Subscriber) fetch(ctx context.Context) ([]goredis.XMessage, error) {
	pipe := s.client.Pipeline()
	read := pipe.XReadGroup(ctx, &goredis.XReadGroupArgs{
		Group: s.group, Consumer: consumer, Streams: []string{s.stream, ">"}, Count: batch, Block: block,
	})
	pending := pipe.XPending(ctx, s.stream, s.group)
	_, failed := pipe.Exec(ctx)
	if err := read.Err(); err != nil && !errors.Is(err, goredis.Nil) {
		return nil, s.lost(ctx, err)
	}
	if pending.Val() == nil {
		return nil, classify(errors.Join(pending.Err(), failed, errNoAnswer)) // a login that failed is in failed only
	}
	var entries []goredis.XMessage
	for _, stream := range read.Val() {
		entries = append(entries, stream.Messages...)
	}
	if pending.Val().Count == int64(len(entries)) {
		return entries, nil
	}
	return s.claim(ctx)
}

// claim returns the first entries that are pending.
func (s *Subscriber) claim(ctx context.Context) ([]goredis.XMessage, error) {
	entries, _, deleted, err := s.client.XAutoClaimWithDeleted(ctx, &goredis.XAutoClaimArgs{
		Stream: s.stream, Group: s.group, Consumer: consumer, Start: "0-0", Count: batch,
	}).Result()
	if len(deleted) > 0 {
		s.log.ErrorContext(ctx, "entries were removed from the stream before they were acknowledged: they may be lost",
			"count", len(deleted), "first", deleted[0])
	}
	return entries, classify(err)
}

// lost creates the group again if somebody has removed it, or the stream. What is still in the stream comes again, as duplicates.
func (s *Subscriber) lost(ctx context.Context, err error) error {
	if !strings.HasPrefix(err.Error(), "NOGROUP") {
		return classify(err)
	}
	s.log.ErrorContext(ctx, "the consumer group was removed: it is created again, and starts with the first entry that is left",
		"group", s.group)
	return s.createGroup(ctx)
}

func (s *Subscriber) received(entries []goredis.XMessage) []relay.Received {
	all := make([]relay.Received, len(entries))
	for i, e := range entries {
		r := relay.Received{Topic: s.stream, Partition: s.stream, Offset: e.ID}
		for name, v := range e.Values {
			text, _ := v.(string) // a field of Redis is nothing else
			switch name {
			case bodyField:
				r.Body = []byte(text)
			case typeField:
				r.ContentType = text
			default:
				r.Add("", name, text)
			}
		}
		all[i] = r
	}
	return all
}

// Lag is how many entries of the stream the group has not acknowledged, -1 while Redis does not know: see [relay.Lagging].
func (s *Subscriber) Lag(ctx context.Context) (int64, error) {
	groups, err := s.client.XInfoGroups(ctx, s.stream).Result()
	if err != nil && !strings.HasPrefix(err.Error(), "ERR no such key") {
		return 0, classify(err)
	}
	for _, g := range groups {
		switch {
		case g.Name != s.group:
		case g.Lag < 0: // entries were removed
			return -1, nil
		default:
			return g.Lag + g.Pending, nil
		}
	}
	n, err := s.client.XLen(ctx, s.stream).Result() // nothing was received yet
	return n, classify(err)
}
