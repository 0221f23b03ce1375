package outbox

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/origin"
)

// Option says about one event what its type cannot know.
type Option func(*configured)

// With adds options to an event. The result is saved like the event itself.
func With(e bus.Event, opts ...Option) bus.Event {
	c := configured{Event: e}
	if inner, ok := e.(configured); ok {
		c = inner
		c.meta = maps.Clone(inner.meta)
	}
	for _, o := range opts {
		o(&c)
	}
	return c
}

// DeliverAt delays the event until t. Only then does it take its place among the
// events of its aggregate. Save refuses a t that is not between the years 2000 and 9000.
func DeliverAt(t time.Time) Option { return func(c *configured) { c.deliverAt = t } }

// Tenant sets tenant_id and store_id; 0 stores NULL, and Save refuses a negative number. The tenant is part of the
// identity of a keyed event. Without it an event belongs to nobody, and one that a handler saves to the
// tenant and store of the handler's message.
func Tenant(tenantID, storeID int64) Option {
	return func(c *configured) { c.tenantID, c.storeID, c.hasTenant = tenantID, storeID, true }
}

// Meta adds one metadata entry. Its key has at most 64 bytes, and all metadata of an event together, as JSON, at most 16 KiB: Save
// refuses more.
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
	hasTenant         bool // said by Tenant
	meta              bus.Metadata
}

// inherit gives the event the tenant of the message on whose behalf it is saved.
func (c *configured) inherit(ctx context.Context) error {
	o := origin.Of(ctx)
	switch {
	case c.hasTenant:
		return nil
	case o.Mixed:
		return errors.New("the handler's call is for messages of several tenants or stores, and the event would lose its own: " +
			"save it with m.Context(ctx) of the message m that it follows from, or say outbox.With(e, outbox.Tenant(tenant, store))")
	}
	c.tenantID, c.storeID = o.TenantID, o.StoreID
	return nil
}
