package bus

import (
	"context"
	"maps"
)

type metadataKey struct{}

// WithMetadata adds metadata that every event saved with the returned context will
// carry, such as requestId and userId. A handler's context carries its event's own,
// so that what it saves stays connected to the request that caused it.
func WithMetadata(ctx context.Context, md Metadata) context.Context {
	merged := maps.Clone(MetadataFrom(ctx))
	if merged == nil {
		merged = make(Metadata, len(md))
	}
	maps.Copy(merged, md)
	return context.WithValue(ctx, metadataKey{}, merged)
}

// MetadataFrom returns what [WithMetadata] put into ctx. Do not change it.
func MetadataFrom(ctx context.Context) Metadata {
	switch v := ctx.Value(metadataKey{}).(type) {
	case Metadata:
		return v
	case *Envelope: // of a handler; most never ask
		return inherited(v.Metadata)
	}
	return nil
}

// inherited is the part of an event's metadata that events saved by its handlers carry on.
func inherited(md Metadata) Metadata {
	out := maps.Clone(md)
	for _, k := range []string{MetaTraceparent, MetaTracestate, MetaTraceID} {
		delete(out, k)
	}
	return out
}
