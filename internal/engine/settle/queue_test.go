package settle_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/engine/settle"
)

var (
	delivered = settle.Event{Certain: true, Needed: []string{"A"}}
	doubtful  = settle.Event{Needed: []string{"A"}}
	epoch     = time.Unix(0, 0)
)

// endedAt is a queue of events whose deliveries have ended at once.
func endedAt(now time.Time, events ...settle.Event) *settle.Queue[int] {
	q := new(settle.Queue[int])
	for i, e := range events {
		q.Add(i, e, now)
	}
	return q
}

// What is SENT for certain is settled at once; what has to be looked at, a little later and together.
func TestWhatIsSettledLater(t *testing.T) {
	t.Parallel()
	const inFlight = 4 // more than in the queue
	q := endedAt(epoch, doubtful, delivered)
	batch, again := q.Take(epoch, inFlight, false)
	require.Equal(t, []int{1}, batch)
	require.Negative(t, again)

	batch, again = q.Take(epoch.Add(settle.Later/5), inFlight, false)
	require.Empty(t, batch)
	require.Equal(t, settle.Later-settle.Later/5, again)
	batch, again = q.Take(epoch.Add(settle.Later/2), inFlight, false)
	require.Empty(t, batch)
	require.Negative(t, again, "it was told already when to ask again")

	q.Tick()
	q.Add(2, doubtful, epoch.Add(settle.Later))
	batch, again = q.Take(epoch.Add(settle.Later), inFlight, false)
	require.Equal(t, []int{0}, batch)
	require.Negative(t, again)
	batch, again = q.Take(epoch.Add(settle.Later), inFlight, false)
	require.Empty(t, batch)
	require.Equal(t, settle.Later, again, "the other one has just ended")
}

// It is not left for later when nothing else can join it, or at the end.
func TestNothingIsSettledLaterInVain(t *testing.T) {
	t.Parallel()
	batch, _ := endedAt(epoch, doubtful).Take(epoch, 2, true)
	require.Equal(t, []int{0}, batch)
	q := endedAt(epoch, doubtful)
	require.True(t, q.IsFull(1))
	require.False(t, q.IsFull(2))
	batch, _ = q.Take(epoch, 1, false) // nothing else is in flight
	require.Equal(t, []int{0}, batch)

	q = endedAt(epoch, slices.Repeat([]settle.Event{doubtful}, settle.Batch+1)...)
	require.True(t, q.IsFull(2*settle.Batch))
	batch, _ = q.Take(epoch, 2*settle.Batch, false)
	require.Len(t, batch, settle.Batch)
}

// A batch looks at a limited number of deliveries, but for a single event, which may have more.
func TestABatchLooksAtALimitedNumberOfDeliveries(t *testing.T) {
	t.Parallel()
	huge := settle.Event{Needed: make([]string, settle.MostLooks+1)}
	q := endedAt(epoch, huge, doubtful, huge)
	batch, _ := q.Take(epoch, 3, false)
	require.Equal(t, []int{0}, batch)
	batch, _ = q.Take(epoch, 2, false)
	require.Equal(t, []int{1}, batch)
	batch, _ = q.Take(epoch, 1, false)
	require.Equal(t, []int{2}, batch)
	batch, again := q.Take(epoch, 0, true)
	require.Empty(t, batch)
	require.Negative(t, again)
}
