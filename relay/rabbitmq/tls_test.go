package rabbitmq_test

import (
	"crypto/tls"
	"log/slog"
	"testing"

	"github.com/bluecone-go/bluecone/internal/testbroker"
	"github.com/bluecone-go/bluecone/relay/rabbitmq"
	"github.com/bluecone-go/bluecone/relay/relaytest"
)

func TestTLSAndAChangedPassword(t *testing.T) {
	t.Parallel()
	b := testbroker.StartTLS(t, "rabbitmq")
	config := func(c *tls.Config) rabbitmq.Config {
		return rabbitmq.Config{TLS: c, Logger: slog.New(slog.DiscardHandler)}
	}
	relaytest.RunSecure(t, relaytest.Secure{
		URL:   func() string { return b.SecureURL().String() + "/?exchange=tested" },
		Roots: b.Roots(), SetPassword: b.SetPassword,
		Publisher: func(url string, c *tls.Config) (relaytest.Publisher, error) {
			return rabbitmq.NewPublisher(url, config(c))
		},
		Subscriber: func(url string, c *tls.Config) (relaytest.Subscriber, error) {
			return rabbitmq.NewSubscriber(url, config(c))
		},
	})
}
