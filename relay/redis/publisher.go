package redis

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/relay"
)

const (
	largeBody = 1 << 20   // no server has a smaller limit
	usualMost = 512 << 20 // the limit of a server that does not tell its own
	mostRoom  = 1 << 10   // beside the payload
)

var errNoAnswer = errors.New("there was no answer")

// Publisher adds events to streams. A message's Destination is the stream; empty means that of the URL.
type Publisher struct{ Connection }

// NewPublisher makes a publisher from a URL, without connecting.
func NewPublisher(url string, config Config) (*Publisher, error) {
	c, err := connection(url, config)
	if err != nil {
		return nil, err
	}
	return &Publisher{c}, nil
}

// Publish adds the messages in one round trip: see [relay.Publisher].
func (p *Publisher) Publish(ctx context.Context, ms []relay.Message) []error {
	errs := make([]error, len(ms))
	pipe := p.client.Pipeline()
	added := make([]*goredis.StringCmd, len(ms))
	for i, m := range ms {
		if errs[i] = p.refuseTooLarge(ctx, m); errs[i] == nil {
			added[i] = pipe.XAdd(ctx, &goredis.XAddArgs{Stream: p.streamOf(m), NoMkStream: !p.mayCreate, Values: fields(m)})
		}
	}
	var waited *goredis.Cmd
	if pipe.Len() == 0 {
		return errs
	}
	if p.replicas > 0 {
		waited = pipe.Do(ctx, "WAIT", p.replicas, (answerLimit / 2).Milliseconds())
	}
	_, failed := pipe.Exec(ctx)
	var lagging error
	if waited != nil {
		lagging = p.lag(waited)
	}
	for i, cmd := range added {
		if cmd != nil {
			errs[i] = p.outcome(cmd, ms[i], failed, lagging)
		}
	}
	return errs
}

// outcome is nil only if Redis has answered with the id of an entry. A command has neither an answer nor an error of its own when
// the login failed: then failed says why.
func (p *Publisher) outcome(cmd *goredis.StringCmd, m relay.Message, failed, lagging error) error {
	id, err := cmd.Result()
	if err == nil && id == "" {
		err = errors.Join(failed, errNoAnswer)
	}
	switch {
	case errors.Is(err, goredis.Nil): // NOMKSTREAM
		return classify(errMissing(p.streamOf(m)))
	case err != nil:
		return classify(err)
	default:
		return lagging
	}
}

// lag is an error if too few replicas have what was added.
func (p *Publisher) lag(waited *goredis.Cmd) error {
	n, err := waited.Int64()
	if err != nil {
		return classify(err)
	}
	if n < int64(p.replicas) {
		return bus.Unavailable(fmt.Errorf("redis: %d replicas have the message within %v, and wait=%d", n, answerLimit/2, p.replicas))
	}
	return nil
}

func (p *Publisher) streamOf(m relay.Message) string {
	if m.Destination != "" {
		return m.Destination
	}
	return p.stream
}

// refuseTooLarge keeps back what the server would close the connection for, with the messages around it.
func (p *Publisher) refuseTooLarge(ctx context.Context, m relay.Message) error {
	if len(m.Body) <= largeBody-mostRoom {
		return nil
	}
	most := usualMost
	limit, err := p.client.ConfigGet(ctx, "proto-max-bulk-len").Result()
	if err != nil && !strings.HasPrefix(err.Error(), "NOPERM") && !strings.HasPrefix(err.Error(), "ERR unknown command") {
		return classify(err)
	}
	if n, err := strconv.Atoi(limit["proto-max-bulk-len"]); err == nil {
		most = n
	}
	if len(m.Body) > most {
		return bus.Permanent(fmt.Errorf("redis: the message has %d bytes, and the server takes %d (proto-max-bulk-len)", len(m.Body), most))
	}
	return nil
}

// fields are those of an entry, always in the same order. What a header's name has in common with an attribute is the attribute's.
func fields(m relay.Message) []any {
	values := make([]any, 0, 2*(len(m.Headers)+len(m.Attributes)+2))
	for _, names := range []map[string]string{m.Headers, m.Attributes} {
		for _, name := range slices.Sorted(maps.Keys(names)) {
			values = append(values, name, names[name])
		}
	}
	return append(values, typeField, m.ContentType, bodyField, m.Body)
}

// pause waits before another try; it reports whether ctx still lives.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
