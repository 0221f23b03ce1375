// Package redis relays events to a stream of Redis 7 or later, and receives them from one.
//
//	pub, err := redis.NewPublisher("redis://user:password@host:6379/0?stream=bluecone", redis.Config{})
//
// The options of the URL are stream, the name of the stream (bluecone by default); create=false, by which nothing is created that
// is missing; and wait=N, by which a message is confirmed only when N replicas have it, too.
//
// An entry of the stream has the attributes of the CloudEvent and the message's headers as fields of their own names, the content
// type as datacontenttype and the payload as data. A stream keeps its whole order, and so that of each aggregate. Nothing here
// removes entries: trim the stream by the id of the last entry that every group has acknowledged (XINFO GROUPS, XTRIM MINID).
//
// What Redis has confirmed outlives it only with appendonly yes and appendfsync always, and only if maxmemory-policy is
// noeviction: see [Connection.Examine].
package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/relay"
)

// Config is what the URL does not say.
type Config struct {
	// Group is the consumer group of a subscriber: each service has its own. All instances of a service share it. Default: "bluecone".
	Group string
	// TLS is how to encrypt connections. Default: nil, they are plain.
	TLS *tls.Config
	// Logger takes what happens to connections. Default: slog.Default().
	Logger *slog.Logger
}

const (
	answerLimit = 5 * time.Second // for everything that is asked of Redis
	bodyField   = "data"
	typeField   = "datacontenttype"
)

// Connection is what a publisher and a subscriber have in common.
type Connection struct {
	target
	client *goredis.Client
	log    *slog.Logger
}

func connection(url string, c Config) (Connection, error) {
	t, err := parse(url)
	if err != nil {
		return Connection{}, err
	}
	o := t.options
	o.TLSConfig = c.TLS
	o.MaxRetries = -1 // an XADD that is sent again by the client is there twice
	o.DialerRetries = 1
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout = answerLimit, answerLimit, answerLimit
	o.ContextTimeoutEnabled = true
	o.Protocol = 2
	o.DisableIdentity = true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return Connection{target: t, client: goredis.NewClient(&o), log: c.Logger.With("broker", "redis", "stream", t.stream)}, nil
}

// Connect looks once whether Redis answers, takes the credentials, and has the stream or may create it: see [relay.Connection].
func (c *Connection) Connect(ctx context.Context) error {
	kind, err := c.client.Type(ctx, c.stream).Result()
	switch {
	case err != nil:
		return classify(err)
	case kind == "none" && !c.mayCreate:
		return classify(errMissing(c.stream))
	case kind != "none" && kind != "stream":
		return classify(refusal{fmt.Sprintf("the key %q is a %s and not a stream", c.stream, kind)})
	}
	return nil
}

// Broker is the server, its database and the stream.
func (c *Connection) Broker() string {
	return fmt.Sprintf("redis://%s/%d?stream=%s", c.options.Addr, c.options.DB, c.stream)
}

// Close ends the connections.
func (c *Connection) Close() error {
	if err := c.client.Close(); err != nil && !errors.Is(err, goredis.ErrClosed) {
		return err
	}
	return nil
}

// refusal is what Redis does not take until a person has changed something.
type refusal struct{ text string }

func (r refusal) Error() string { return r.text }

// Is reports that a refusal is [relay.ErrRefused].
func (r refusal) Is(target error) bool { return target == relay.ErrRefused }

func errMissing(stream string) error {
	return refusal{fmt.Sprintf("the stream %q is not there, and create=false", stream)}
}

// classify says what an error of Redis means for what was to be done: see [relay.Publisher].
func classify(err error) error {
	var answer goredis.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &answer) && needsPerson(answer.Error()), relay.IsUntrusted(err):
		return bus.Unavailable(fmt.Errorf("redis: %w: %w", relay.ErrRefused, err))
	case errors.As(err, &answer) && !isPassing(answer.Error()):
		return fmt.Errorf("redis: %w", err)
	default: // nobody listens, it does not answer, or the connection broke
		return bus.Unavailable(fmt.Errorf("redis: %w", err))
	}
}

// needsPerson reports whether an answer stays the same until a person has changed something: credentials, rights, memory, disk, or a
// key of another type.
func needsPerson(answer string) bool {
	for _, code := range []string{
		"WRONGPASS", "NOAUTH", "NOPERM", "WRONGTYPE", "OOM", "MISCONF", "ERR invalid password", "ERR AUTH", "ERR DB index",
	} {
		if strings.HasPrefix(answer, code) {
			return true
		}
	}
	return false
}

// isPassing reports whether an answer says that this server cannot now.
func isPassing(answer string) bool {
	for _, code := range []string{
		"LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY", "NOREPLICAS", "ERR max number of clients", "UNBLOCKED",
	} {
		if strings.HasPrefix(answer, code) {
			return true
		}
	}
	return false
}
