package bus

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A lane remembers what it has delivered lately, nothing else, and not more and more of it.
func TestMemoryOfDeliveries(t *testing.T) {
	t.Parallel()
	const apart = 1000 // no two in a row of ids
	var m memory
	require.False(t, m.has(0))
	for i := range int64(5 * generation) {
		id := apart * i
		require.False(t, m.has(id))
		m.add(id)
		require.True(t, m.has(id))
		require.False(t, m.has(id+1))
		require.True(t, m.has(max(id-apart*(generation-1), 0)), "a generation ago")
		require.LessOrEqual(t, len(m.recent)+len(m.older), 2*generation)
	}
	require.False(t, m.has(0))
}

// A delivery may have to wait unless its lane has delivered all that was open before it.
func TestWhatADeliveryMayHaveToWaitFor(t *testing.T) {
	t.Parallel()
	ln := &lane{c: &Consumer{}}
	of := func(id int64) *delivery {
		return &delivery{env: &Envelope{OutboxID: id, AggregateType: "ORDER", AggregateID: "1"}}
	}
	behind := of(9)
	behind.before = []int64{3, 7}
	require.False(t, ln.mayWait(of(1)))
	require.True(t, ln.mayWait(behind))
	ln.finished([]*delivery{of(3)})
	require.True(t, ln.mayWait(behind), "7 is missing")
	ln.finished([]*delivery{of(7)})
	require.False(t, ln.mayWait(behind))
	ln.queue = []*delivery{behind}
	ln.unfinished([]*delivery{of(8)})
	require.True(t, ln.mayWait(behind), "one that was offered with it has failed")
	ln = &lane{c: &Consumer{cfg: ConsumerConfig{Unordered: true}}}
	require.False(t, ln.mayWait(behind), "no order, no wait")
}
