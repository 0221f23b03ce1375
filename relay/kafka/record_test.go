package kafka

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
)

// An inbox names what has no id by its place and its time, which are the same when it comes again.
func TestRecordsHavePlaceAndTime(t *testing.T) {
	t.Parallel()
	at := time.UnixMilli(1_764_309_600_123)
	r := received(&kgo.Record{Topic: "orders", Partition: 3, Offset: 9, Timestamp: at})
	require.Equal(t, []string{"orders", "orders/3", "9"}, []string{r.Topic, r.Partition, r.Offset})
	require.True(t, at.Equal(r.Time))
}
