package consumelog

import (
	"context"
	"time"

	"github.com/bluecone-go/bluecone/internal/store"
)

// AnyLeft is a condition, and its arguments, that holds when a delivery of one of the consumers was left to instances that
// know the schema version of its event.
func (l *Log) AnyLeft(consumers []string) (cond string, args []any) { return l.left.Any(consumers) }

// LeftPage lists such deliveries of a consumer, by the ids of their rows, from the one after the given id on.
func (l *Log) LeftPage(ctx context.Context, consumer string, after int64, most int) ([]store.LeftDelivery, error) {
	return l.left.Page(ctx, l.db, consumer, after, most)
}

// LeftLong lists, for each consumer of the registry, a delivery that was left longer ago than grace.
func (l *Log) LeftLong(ctx context.Context, grace time.Duration) ([]store.LeftDelivery, error) {
	return l.left.Long(ctx, l.db, grace)
}
