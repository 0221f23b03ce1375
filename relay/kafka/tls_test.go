package kafka_test

import (
	"crypto/tls"
	"log/slog"
	"testing"

	"github.com/bluecone-go/bluecone/internal/testbroker"
	"github.com/bluecone-go/bluecone/relay/kafka"
	"github.com/bluecone-go/bluecone/relay/relaytest"
)

func TestTLSAndAChangedPassword(t *testing.T) {
	t.Parallel()
	b := testbroker.StartTLS(t, "kafka")
	config := func(c *tls.Config) kafka.Config { return kafka.Config{TLS: c, Logger: slog.New(slog.DiscardHandler)} }
	relaytest.RunSecure(t, relaytest.Secure{
		URL:   func() string { return b.SecureURL().String() + "/tested" },
		Roots: b.Roots(), SetPassword: b.SetPassword,
		Publisher: func(url string, c *tls.Config) (relaytest.Publisher, error) {
			return kafka.NewPublisher(url, config(c))
		},
		Subscriber: func(url string, c *tls.Config) (relaytest.Subscriber, error) {
			return kafka.NewSubscriber(url, config(c))
		},
	})
}
