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
	md, _ := ctx.Value(metadataKey{}).(Metadata)
	return md
}
