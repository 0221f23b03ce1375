// Package origin carries in a context on behalf of which message code runs: what it saves inherits from that message.
package origin

import "context"

// Origin is what events that are saved with a context inherit.
type Origin struct {
	// Metadata is that of the message, as it is stored; nil outside of handlers, and in a call for several messages.
	Metadata map[string]string
	// Added is what bus.WithMetadata has added.
	Added map[string]string
	// TenantID and StoreID are those of the message, or of all messages of the call; 0 for none.
	TenantID, StoreID int64
	// Mixed says that the call is for messages of several tenants or stores.
	Mixed bool
}

// Keys of the metadata of an event that an inbox has landed: where it comes from. What its handlers save does not inherit them.
const (
	Source    = "originSource"    // the inbox
	Partition = "originPartition" // the partition, queue or stream of the broker
	Offset    = "originOffset"    // its place there
)

// Undecodable is the type of the events as which messages land that an inbox cannot read. Their only deliveries are to the inbox, which is
// no consumer: retried, it lands them again.
const Undecodable = "inbox.undecodable"

type key struct{}

// With returns ctx with another origin.
func With(ctx context.Context, o Origin) context.Context { return context.WithValue(ctx, key{}, &o) }

// Of is the origin that ctx carries, the zero value for none.
func Of(ctx context.Context) Origin {
	if o, ok := ctx.Value(key{}).(*Origin); ok {
		return *o
	}
	return Origin{}
}

// WithMessage returns ctx for work on behalf of one message.
func WithMessage(ctx context.Context, metadata, added map[string]string, tenantID, storeID int64) context.Context {
	if metadata == nil {
		metadata = map[string]string{}
	}
	return With(ctx, Origin{Metadata: metadata, Added: added, TenantID: tenantID, StoreID: storeID})
}
