// Package rocketmq relays events to a FIFO topic of RocketMQ 5.3 or later, and receives them from one, by way of its proxy.
//
//	pub, err := rocketmq.NewPublisher("rocketmq://user:password@host:8081/topic", rocketmq.Config{})
//
// The URL names the proxy, or what spreads connections over several, and one topic. The user and the password are RocketMQ's access key
// and secret key: requests are signed, and the secret does not travel. A client of the proxy cannot create topics and groups: where one is
// missing, or is not in order, the error prints the command of mqadmin that creates it. So the option create of the URL is taken
// and changes nothing.
//
// The message group is the tenant, type and id of the aggregate, or a hash of it if it has more than 64 bytes. The proxy gives each
// message group a queue, so that an aggregate keeps its order. Adding queues to a topic moves message groups to others, and the order
// of the events around that moment is lost: let everything land first, while the relay is paused. Attributes of the CloudEvent are
// properties with the prefix "CE_", the content type is "CE_contenttype", and an empty payload is one byte 0, as in the
// CloudEvents SDK for Java. RocketMQ takes no control characters in properties: an event whose attributes have one is DEAD, unless
// relay.Config.Structured puts the attributes into the payload.
//
// A message is confirmed when the broker answers OK, which means that it is on disk only with flushDiskType=SYNC_FLUSH, and that a
// replica has it only with brokerRole=SYNC_MASTER. The proxy does not tell these settings, so nothing here examines them.
//
// All instances of a service are one consumer group, which has to be orderly (-o true): then a queue whose messages are not
// acknowledged is closed to other instances, for 15 s after they were given out. Each instance lands a queue without a gap, from the
// first message that is not acknowledged, and what lands twice is known by its id. The group has to allow a million redeliveries
// (-r 1000000): what is delivered more often goes to RocketMQ's own dead letter queue, where no inbox looks. A group that receives for the
// first time starts with the first message only while the broker has that one in memory, and otherwise with the last of
// each queue: let the inbox run once before the relay.
//
// This package speaks RocketMQ's protocol by the definitions of its client for Go, and does not use the client: v5.1.4 leaves
// goroutines and connections behind when it is stopped, takes an acknowledgement that was refused for a success, and is refused for
// minutes after the proxy was restarted. Decision 34 of bluecone says more.
//
// A proxy in LOCAL mode that has just started says for up to 20 s of any topic that it is missing. That counts as a refusal only a minute
// after RocketMQ was asked first, or did not answer last; until then the error says that it may have just started.
//
// Several brokers need proxies in CLUSTER mode: a proxy in LOCAL mode knows the queues of its own broker only.
package rocketmq

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/relay"
)

const (
	form        = "rocketmq://user:password@host:port/topic"
	answerLimit = 10 * time.Second // for everything that is asked of RocketMQ
	// startsFor is how long a proxy that starts may not know the topics that are there: it remembers for 20 s that it did not.
	startsFor = time.Minute
)

// Config is what the URL does not say.
type Config struct {
	// Group is the consumer group of a subscriber: each service has its own. All instances of a service share it, and
	// receive one topic by it. Default: "bluecone".
	Group string
	// TLS is how to encrypt connections. Default: nil, they are plain.
	TLS *tls.Config
	// Logger takes what happens to connections. Default: slog.Default().
	Logger *slog.Logger
}

// target is what a URL names.
type target struct {
	host, topic string
	user        *url.Userinfo // nil without a login
	tls         *tls.Config
	log         *slog.Logger
	unsureSince *atomic.Int64 // when RocketMQ was asked first, or did not answer last, in nanoseconds; 0 for never asked
}

// topicName is a name that RocketMQ takes.
var topicName = regexp.MustCompile(`^[a-zA-Z0-9_%|-]{1,127}$`)

func parse(raw string, c Config) (target, error) {
	u, err := relay.ParseURL(raw, form, "create")
	if err != nil {
		return target{}, err
	}
	if _, err := relay.MayCreate(u); err != nil {
		return target{}, err
	}
	if _, _, err := net.SplitHostPort(u.Host); err != nil || strings.Contains(u.Host, ",") {
		return target{}, fmt.Errorf("%w: it is at %q: it must be one host and its port: write %s", relay.ErrURL, u.Host, form)
	}
	topic := strings.Trim(u.Path, "/")
	if !topicName.MatchString(topic) {
		return target{}, fmt.Errorf("%w: the topic is %q: it must be 1 to 127 letters, digits, \"_\", \"-\", \"%%\" or \"|\": write %s",
			relay.ErrURL, topic, form)
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return target{
		host: u.Host, topic: topic, user: u.User, tls: c.TLS, log: c.Logger.With("broker", "rocketmq", "topic", topic),
		unsureSince: new(atomic.Int64),
	}, nil
}

// Broker is the proxy and the topic.
func (t target) Broker() string { return "rocketmq://" + t.host + "/" + t.topic }

// answerError is an answer of RocketMQ that is not OK.
type answerError struct {
	code    v2.Code
	message string
}

func (e *answerError) Error() string { return e.code.String() + ": " + e.message }

// answered is why something was not done: the way to RocketMQ failed, or its answer is not OK.
func answered(err error, s *v2.Status) error {
	if err != nil || s.GetCode() == v2.Code_OK {
		return err
	}
	return &answerError{s.GetCode(), s.GetMessage()}
}

// refusal is what does not work until a person has changed something, with what to do.
type refusal struct{ text string }

func (r refusal) Error() string { return r.text }

// outcome classifies the answer to what is about a topic. A proxy that has just started says for a while that there is none, and who
// asks for the first time does not know whether it has.
func (t target) outcome(topic string, err error, s *v2.Status) error {
	now := time.Now().UnixNano()
	if err != nil {
		t.unsureSince.Store(now)
		return classify(err)
	}
	t.unsureSince.CompareAndSwap(0, now)
	if s.GetCode() != v2.Code_TOPIC_NOT_FOUND {
		return classify(answered(nil, s))
	}
	err = errTopic(topic, "is not there, and a client of the proxy cannot create it")
	if time.Since(time.Unix(0, t.unsureSince.Load())) < startsFor {
		return bus.Unavailable(fmt.Errorf("rocketmq: it may have just started: %w", err))
	}
	return classify(err)
}

func errTopic(topic, problem string) error {
	return refusal{fmt.Sprintf("the topic %s %s: mqadmin updateTopic -n NAMESERVER:9876 -c CLUSTER -t %s -r 8 -w 8 -a +message.type=FIFO",
		topic, problem, topic)}
}

func errGroup(group, problem string) error {
	return refusal{fmt.Sprintf("the group %s %s: mqadmin updateSubGroup -n NAMESERVER:9876 -c CLUSTER -g %s -o true -r 1000000",
		group, problem, group)}
}

// classify says what an error means for what was to be done: see [relay.Publisher].
func classify(err error) error {
	var answer *answerError
	switch {
	case err == nil:
		return nil
	case needsPerson(err):
		return bus.Unavailable(fmt.Errorf("rocketmq: %w: %w", relay.ErrRefused, err))
	case isAboutMessage(err):
		return bus.Permanent(fmt.Errorf("rocketmq: %w", err))
	case errors.As(err, &answer) && !isPassing(answer.code):
		return fmt.Errorf("rocketmq: %w", err)
	default: // nobody listens, it does not answer, or the connection broke
		return bus.Unavailable(fmt.Errorf("rocketmq: %w", err))
	}
}

// needsPerson reports whether an error stays the same until a person has changed something.
func needsPerson(err error) bool {
	if _, ok := errors.AsType[refusal](err); ok {
		return true
	}
	if answer, ok := errors.AsType[*answerError](err); ok {
		return slices.Contains([]v2.Code{
			v2.Code_UNAUTHORIZED, v2.Code_FORBIDDEN, v2.Code_TOPIC_NOT_FOUND, v2.Code_CONSUMER_GROUP_NOT_FOUND, v2.Code_ILLEGAL_TOPIC,
			v2.Code_ILLEGAL_CONSUMER_GROUP, v2.Code_MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
		}, answer.code)
	}
	return slices.Contains([]codes.Code{codes.Unauthenticated, codes.PermissionDenied}, status.Code(err)) || relay.IsUntrusted(err)
}
