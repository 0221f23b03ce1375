package spi

import (
	"context"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/store"
)

// Broker is what an instance of a relay or an inbox knows of its broker.
type Broker = store.Broker

// Who is at a broker, and what is known of the way to it.
const (
	RoleRelay       = store.RoleRelay
	RoleInbox       = store.RoleInbox
	BrokerConnected = store.BrokerConnected
	BrokerAway      = store.BrokerAway
	BrokerRefuses   = store.BrokerRefuses
	BrokerUnknown   = store.BrokerUnknown
)

// TellBroker has a running publisher write every few seconds what read knows of the broker of a consumer of b. The name and the window are
// those of the consumer.
func TellBroker(b *bus.Bus, c *bus.Consumer, read func(ctx context.Context) Broker) {
	all := handler.Of(b)
	all.Lock()
	defer all.Unlock()
	if of := registered(all, c.Key()); of != nil {
		of.Broker = func(ctx context.Context) Broker {
			is := read(ctx)
			is.Role, is.Name, is.Window = RoleRelay, of.Key, of.Config.Batch*of.Config.Concurrency
			return is
		}
	}
}
