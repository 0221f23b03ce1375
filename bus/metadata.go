package bus

import (
	"context"
	"maps"

	"go.opentelemetry.io/otel/trace"

	"github.com/bluecone-go/bluecone/internal/origin"
	"github.com/bluecone-go/bluecone/internal/telemetry"
)

// WithMetadata adds metadata that every event saved with the returned context will
// carry, such as requestId and userId. A handler's context carries its event's own,
// so that what it saves stays connected to the request that caused it; see [Message.Context].
func WithMetadata(ctx context.Context, md Metadata) context.Context {
	o := origin.Of(ctx)
	added := make(Metadata, len(o.Added)+len(md))
	maps.Copy(added, o.Added)
	maps.Copy(added, md)
	o.Added = added
	return origin.With(ctx, o)
}

// MetadataFrom returns what events saved with ctx will carry: what [WithMetadata] put into ctx, and in a handler its
// event's own. Do not change it.
func MetadataFrom(ctx context.Context) Metadata {
	o := origin.Of(ctx)
	if o.Metadata == nil {
		return o.Added
	}
	out := inherited(o.Metadata)
	maps.Copy(out, o.Added)
	return out
}

// inherited is the part of an event's metadata that events saved by its handlers carry on.
func inherited(md Metadata) Metadata {
	out := maps.Clone(md)
	for _, k := range []string{MetaTraceparent, MetaTracestate, MetaTraceID, origin.Source, origin.Partition, origin.Offset} {
		delete(out, k)
	}
	return out
}

// Context returns ctx for work on behalf of this message: events saved with it belong to the message's tenant and store
// unless outbox.Tenant says otherwise, carry its metadata and continue its trace. A handler of one message has such a
// context already. A handler of many ([OnBatch]) calls it for each:
//
//	for _, m := range ms {
//		err := ob.Save(m.Context(ctx), tx, PointsGiven{…})
//	}
func (m Message[E]) Context(ctx context.Context) context.Context {
	ctx = origin.WithMessage(ctx, m.Metadata, origin.Of(ctx).Added, m.TenantID, m.StoreID)
	within := telemetry.Extract(ctx, m.Metadata)
	if trace.SpanContextFromContext(within).TraceID() == trace.SpanContextFromContext(ctx).TraceID() {
		return ctx // in a span of that trace
	}
	return within
}
