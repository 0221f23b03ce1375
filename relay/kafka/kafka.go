// Package kafka relays events to a topic of Kafka 2.4 or later, and receives them from one.
//
//	pub, err := kafka.NewPublisher("kafka://user:password@host1:9092,host2:9092/topic", kafka.Config{})
//
// The URL names some brokers of the cluster, the first of which that answers names all others, and one topic. Its only option is
// create=false, by which a topic that is missing is not created. Otherwise both ends create it with as many partitions and replicas as
// the cluster has by default: create it yourself to choose them. A user and a password are those of SASL's PLAIN; do without TLS only
// where nobody can read along.
//
// The key of a record is the tenant, type and id of the aggregate, which Kafka's usual hash gives a partition, so that an aggregate
// keeps its order. Adding partitions to a topic moves keys to others, and the order of the events around that moment is lost: let
// everything land first, while the relay is paused. Attributes of the CloudEvent are headers with the prefix "ce_".
//
// The producer is idempotent, and a record is confirmed by all replicas that are in sync. What was confirmed may still be lost by
// settings of the topic and of the cluster: see [Publisher.Examine].
//
// All instances of a service are one consumer group, which gives each partition to one of them. An offset is committed after the COMMIT
// of the database, and before the partition may go to another instance. An instance that is expelled while it lands does no
// harm: every instance lands a partition without a gap, from an offset up to which everything has landed, and what lands twice is known
// by its id.
package kafka

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/relay"
)

const (
	form        = "kafka://user:password@host1:port,host2:port/topic"
	answerLimit = 10 * time.Second // for everything that is asked of Kafka
)

// Config is what the URL does not say.
type Config struct {
	// Group is the consumer group of a subscriber: each service has its own. All instances of a service share it. Default: "bluecone".
	Group string
	// SASL is how to log in: pkg/sasl of franz-go has SCRAM, OAUTHBEARER and others. Default: nil, PLAIN with the user and the password
	// of the URL, if it has a user.
	SASL sasl.Mechanism
	// TLS is how to encrypt connections. Default: nil, they are plain.
	TLS *tls.Config
	// Logger takes what happens to connections, and what was lost. Default: slog.Default().
	Logger *slog.Logger
}

// target is what a URL names.
type target struct {
	topic     string
	brokers   string // host1:port,host2:port
	mayCreate bool
	options   []kgo.Opt // of every client
	log       *slog.Logger
}

// topicName is a name that Kafka takes. "topic/partition" has to fit into [relay.Received.Partition].
var topicName = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,180}$`)

func parse(raw string, c Config) (target, error) {
	u, err := relay.ParseURL(raw, form, "create")
	if err != nil {
		return target{}, err
	}
	may, err := relay.MayCreate(u)
	if err != nil {
		return target{}, err
	}
	topic := strings.Trim(u.Path, "/")
	if !topicName.MatchString(topic) || topic == "." || topic == ".." {
		return target{}, fmt.Errorf("%w: the topic is %q: it must be 1 to 180 letters, digits, \".\", \"_\" or \"-\": write %s",
			relay.ErrURL, topic, form)
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	t := target{topic: topic, brokers: u.Host, mayCreate: may, log: c.Logger.With("broker", "kafka", "topic", topic)}
	t.options = []kgo.Opt{
		kgo.ClientID("bluecone"), kgo.SeedBrokers(strings.Split(u.Host, ",")...), kgo.DialTimeout(answerLimit),
		kgo.MetadataMinAge(time.Second), kgo.DisableClientMetrics(), kgo.WithHooks(&watch{log: t.log, away: make(map[string]bool)}),
	}
	if c.TLS != nil {
		t.options = append(t.options, kgo.DialTLSConfig(c.TLS))
	}
	if c.SASL != nil {
		t.options = append(t.options, kgo.SASL(c.SASL))
	} else if password, _ := u.User.Password(); u.User.Username() != "" {
		t.options = append(t.options, kgo.SASL(plain.Auth{User: u.User.Username(), Pass: password}.AsMechanism()))
	}
	client, err := t.client()
	if err != nil {
		return target{}, fmt.Errorf("%w: %w: write %s", relay.ErrURL, err, form)
	}
	client.Close() // the options are right
	return t, nil
}

// Broker is the brokers that the URL names, and its topic.
func (t target) Broker() string { return "kafka://" + t.brokers + "/" + t.topic }

// client is a new one, which connects when it is asked for something.
func (t target) client(more ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append(slices.Clip(t.options), more...)...)
}

// classify says what an error means for what was to be done: see [relay.Publisher].
func classify(err error) error {
	var answer *kerr.Error
	switch {
	case err == nil:
		return nil
	case needsPerson(err):
		return bus.Unavailable(fmt.Errorf("kafka: %w: %w", relay.ErrRefused, err))
	case errors.As(err, &answer) && !answer.Retriable && !isMissing(err):
		return fmt.Errorf("kafka: %w", err)
	default: // nobody listens, it does not answer, or the connection broke
		return bus.Unavailable(fmt.Errorf("kafka: %w", err))
	}
}

// needsPerson reports whether an error stays the same until a person has changed something.
func needsPerson(err error) bool {
	for _, stays := range []error{
		errMissing, kerr.SaslAuthenticationFailed, kerr.UnsupportedSaslMechanism, kerr.IllegalSaslState, kerr.TopicAuthorizationFailed,
		kerr.GroupAuthorizationFailed, kerr.ClusterAuthorizationFailed, kerr.InvalidTopicException, kerr.InvalidReplicationFactor,
		kerr.InvalidPartitions, kerr.PolicyViolation,
	} {
		if errors.Is(err, stays) {
			return true
		}
	}
	return relay.IsUntrusted(err)
}

// isMissing reports whether a topic was not there, or is another of the same name.
func isMissing(err error) bool {
	return errors.Is(err, kerr.UnknownTopicOrPartition) || errors.Is(err, kerr.UnknownTopicID)
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
