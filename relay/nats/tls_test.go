package nats_test

import (
	"crypto/tls"
	"log/slog"
	"testing"

	"github.com/bluecone-go/bluecone/internal/testbroker"
	"github.com/bluecone-go/bluecone/relay/nats"
	"github.com/bluecone-go/bluecone/relay/relaytest"
)

func TestTLSAndAChangedPassword(t *testing.T) {
	t.Parallel()
	b := testbroker.StartTLS(t, "nats")
	config := func(c *tls.Config) nats.Config { return nats.Config{TLS: c, Logger: slog.New(slog.DiscardHandler)} }
	relaytest.RunSecure(t, relaytest.Secure{
		URL:   func() string { return b.SecureURL().String() + "/TESTED" },
		Roots: b.Roots(), SetPassword: b.SetPassword,
		Publisher: func(url string, c *tls.Config) (relaytest.Publisher, error) { return nats.NewPublisher(url, config(c)) },
		Subscriber: func(url string, c *tls.Config) (relaytest.Subscriber, error) {
			return nats.NewSubscriber(url, config(c))
		},
	})
}
