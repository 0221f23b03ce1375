package outbox

import (
	"time"

	"github.com/bluecone-go/bluecone/bus"
)

// Option says about one event what its type cannot know.
type Option func(*configured)

// With adds options to an event. The result is saved like the event itself.
func With(e bus.Event, opts ...Option) bus.Event {
	c := configured{Event: e}
	if inner, ok := e.(configured); ok {
		c = inner
	}
	for _, o := range opts {
		o(&c)
	}
	return c
}

// DeliverAt delays the event until t. Only then does it take its place among the
// events of its aggregate.
func DeliverAt(t time.Time) Option { return func(c *configured) { c.deliverAt = t } }

// Tenant sets tenant_id and store_id; 0 stores NULL. The tenant is part of the
// identity of a keyed event.
func Tenant(tenantID, storeID int64) Option {
	return func(c *configured) { c.tenantID, c.storeID = tenantID, storeID }
}

// Meta adds one metadata entry.
func Meta(key, value string) Option {
	return func(c *configured) {
		if c.meta == nil {
			c.meta = make(bus.Metadata)
		}
		c.meta[key] = value
	}
}

// configured is an event with its options.
type configured struct {
	bus.Event
	deliverAt         time.Time
	tenantID, storeID int64
	meta              bus.Metadata
}
