package redis_test

import (
	"crypto/tls"
	"log/slog"
	"testing"

	"github.com/bluecone-go/bluecone/internal/testbroker"
	"github.com/bluecone-go/bluecone/relay/redis"
	"github.com/bluecone-go/bluecone/relay/relaytest"
)

func TestTLSAndAChangedPassword(t *testing.T) {
	t.Parallel()
	b := testbroker.StartTLS(t, "redis")
	config := func(c *tls.Config) redis.Config { return redis.Config{TLS: c, Logger: slog.New(slog.DiscardHandler)} }
	relaytest.RunSecure(t, relaytest.Secure{
		URL:   func() string { return b.SecureURL().String() + "/0?stream=tested" },
		Roots: b.Roots(), SetPassword: b.SetPassword,
		Publisher: func(url string, c *tls.Config) (relaytest.Publisher, error) {
			return redis.NewPublisher(url, config(c))
		},
		Subscriber: func(url string, c *tls.Config) (relaytest.Subscriber, error) {
			return redis.NewSubscriber(url, config(c))
		},
	})
}
