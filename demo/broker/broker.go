// Package broker chooses the adapter that the URL of a broker asks for.
package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/bluecone-go/bluecone/relay"
	"github.com/bluecone-go/bluecone/relay/kafka"
	"github.com/bluecone-go/bluecone/relay/nats"
	"github.com/bluecone-go/bluecone/relay/rabbitmq"
	"github.com/bluecone-go/bluecone/relay/redis"
	"github.com/bluecone-go/bluecone/relay/rocketmq"
)

// Publisher sends events to a broker.
type Publisher interface {
	relay.Publisher
	relay.Connection
}

// Subscriber receives them.
type Subscriber interface {
	relay.Subscriber
	relay.Connection
}

// adapter is how to reach one kind of broker.
type adapter struct {
	scheme     string
	form       string // of its URL; empty where another scheme shows it
	publisher  func(url string) (Publisher, error)
	subscriber func(url, service string) (Subscriber, error)
}

func adapters() []adapter {
	natsTo := func(url string) (Publisher, error) { return nats.NewPublisher(url, nats.Config{}) }
	natsFrom := func(url, service string) (Subscriber, error) {
		return nats.NewSubscriber(url, nats.Config{Durable: service})
	}
	return []adapter{
		{"nats", "nats://host:port/STREAM", natsTo, natsFrom},
		{"tls", "", natsTo, natsFrom},
		{
			"amqp", "amqp://user:pass@host:port/vhost?exchange=bluecone",
			func(url string) (Publisher, error) { return rabbitmq.NewPublisher(url, rabbitmq.Config{}) },
			func(url, _ string) (Subscriber, error) { return rabbitmq.NewSubscriber(url, rabbitmq.Config{}) },
		},
		{
			"kafka", "kafka://host:port/topic",
			func(url string) (Publisher, error) { return kafka.NewPublisher(url, kafka.Config{}) },
			func(url, service string) (Subscriber, error) {
				return kafka.NewSubscriber(url, kafka.Config{Group: service})
			},
		},
		{
			"redis", "redis://host:port/0?stream=bluecone",
			func(url string) (Publisher, error) { return redis.NewPublisher(url, redis.Config{}) },
			func(url, service string) (Subscriber, error) {
				return redis.NewSubscriber(url, redis.Config{Group: service})
			},
		},
		{
			"rocketmq", "rocketmq://host:port/topic",
			func(url string) (Publisher, error) { return rocketmq.NewPublisher(url, rocketmq.Config{}) },
			func(url, service string) (Subscriber, error) {
				return rocketmq.NewSubscriber(url, rocketmq.Config{Group: service})
			},
		},
	}
}

// Forms says how URLs are written.
func Forms() string {
	var forms []string
	for _, a := range adapters() {
		if a.form != "" {
			forms = append(forms, a.form)
		}
	}
	return strings.Join(forms, ", ")
}

func choose(url string) (adapter, error) {
	scheme, _, _ := strings.Cut(url, "://")
	for _, a := range adapters() {
		if a.scheme == scheme {
			return a, nil
		}
	}
	return adapter{}, fmt.Errorf("%w: nobody knows its scheme; write %s", relay.ErrURL, Forms())
}

// NewPublisher makes a publisher for the broker of a URL, without connecting.
func NewPublisher(url string) (Publisher, error) {
	a, err := choose(url)
	if err != nil {
		return nil, err
	}
	return a.publisher(url)
}

// NewSubscriber makes a subscriber for a service, whose instances share what comes, without connecting.
func NewSubscriber(url, service string) (Subscriber, error) {
	a, err := choose(url)
	if err != nil {
		return nil, err
	}
	return a.subscriber(url, service)
}

// Connect looks whether the broker takes the program. It returns an error if the broker refuses it; one that is not there now is waited
// for, and the log says so.
func Connect(ctx context.Context, c relay.Connection) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	err := c.Connect(ctx)
	if errors.Is(err, relay.ErrRefused) {
		return err
	}
	if err != nil {
		slog.WarnContext(ctx, "the broker is not there yet: it is waited for", "error", err)
	}
	return nil
}
