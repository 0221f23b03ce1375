package broker_test

import (
	"context"
	"fmt"
	"net/url"
	"testing"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	amqp "github.com/rabbitmq/amqp091-go"
	goredis "github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/bluecone-go/bluecone/internal/testbroker"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// ownClient publishes bodies by the own client of a broker, with the settings of the adapter and as many unconfirmed as a relay may
// have, to where nobody receives from.
type ownClient func(ctx context.Context, at *url.URL, topic string, bodies [][]byte) error

func owns() map[string]ownClient {
	return map[string]ownClient{"nats": ownNATS, "redis": ownRedis, "rabbitmq": ownRabbitMQ, "kafka": ownKafka}
}

// urlOf is the URL of a broker for the two services.
func urlOf(b *testbroker.Broker, topic string) string {
	u := *b.URL
	switch u.Scheme {
	case "redis":
		u.Path, u.RawQuery = "/0", "stream="+topic
	case "amqp":
		u.Path, u.RawQuery = "/", "exchange="+topic
	default:
		u.Path = "/" + topic
	}
	return u.String()
}

// key is that of the aggregate of a body.
func key(i int) string { return fmt.Sprintf("0/ORDER/%d", i%aggregates) }

func ownNATS(ctx context.Context, at *url.URL, topic string, bodies [][]byte) error {
	nc, err := natsgo.Connect(at.String())
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(aggregates))
	if err != nil {
		return err
	}
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: topic, Subjects: []string{topic + ".>"}}); err != nil {
		return err
	}
	for i, body := range bodies {
		if _, err := js.PublishMsgAsync(&natsgo.Msg{Subject: topic + "." + key(i), Data: body}); err != nil {
			return err
		}
	}
	select {
	case <-js.PublishAsyncComplete():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func ownRedis(ctx context.Context, at *url.URL, topic string, bodies [][]byte) error {
	password, _ := at.User.Password()
	client := goredis.NewClient(&goredis.Options{Addr: at.Host, Username: at.User.Username(), Password: password})
	defer client.Close()
	for first := 0; first < len(bodies); first += aggregates {
		pipe := client.Pipeline()
		for i := first; i < min(first+aggregates, len(bodies)); i++ {
			pipe.XAdd(ctx, &goredis.XAddArgs{Stream: topic, Values: []any{"key", key(i), "data", bodies[i]}})
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return err
		}
	}
	return nil
}

func ownRabbitMQ(ctx context.Context, at *url.URL, topic string, bodies [][]byte) error {
	conn, err := amqp.Dial(at.String() + "/")
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	if _, err := ch.QueueDeclare(topic, true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
		return err
	}
	if err := ch.Confirm(false); err != nil {
		return err
	}
	for first := 0; first < len(bodies); first += aggregates {
		var confirmed []*amqp.DeferredConfirmation
		for i := first; i < min(first+aggregates, len(bodies)); i++ {
			c, err := ch.PublishWithDeferredConfirmWithContext(ctx, "", topic, true, false,
				amqp.Publishing{Body: bodies[i], MessageId: key(i), DeliveryMode: amqp.Persistent})
			if err != nil {
				return err
			}
			confirmed = append(confirmed, c)
		}
		for _, c := range confirmed {
			if ok, err := c.WaitContext(ctx); err != nil || !ok {
				return fmt.Errorf("not confirmed: %w", err)
			}
		}
	}
	return nil
}

func ownKafka(ctx context.Context, at *url.URL, topic string, bodies [][]byte) error {
	password, _ := at.User.Password()
	client, err := kgo.NewClient(kgo.SeedBrokers(at.Host), kgo.SASL(plain.Auth{User: at.User.Username(), Pass: password}.AsMechanism()),
		kgo.RequiredAcks(kgo.AllISRAcks()), kgo.MaxBufferedRecords(aggregates), kgo.DisableClientMetrics())
	if err != nil {
		return err
	}
	defer client.Close()
	if _, err := kadm.NewClient(client).CreateTopic(ctx, -1, -1, nil, topic); err != nil {
		return err
	}
	results := make(chan error, len(bodies))
	for i, body := range bodies {
		client.Produce(ctx, &kgo.Record{Topic: topic, Key: []byte(key(i)), Value: body}, func(_ *kgo.Record, err error) { results <- err })
	}
	for range bodies {
		if err := <-results; err != nil {
			return err
		}
	}
	return nil
}
