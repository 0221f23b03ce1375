package bus

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A database that answers the last look ever more slowly loses workers, down to one, and gets
// them back when it is quick again.
func TestPaceFollowsTheDatabase(t *testing.T) {
	t.Parallel()
	const limit, quick, slow = 4, 300 * time.Microsecond, 20 * time.Millisecond
	var p pace
	looks := func(n int, took time.Duration) int {
		for range n {
			p.feel(took, limit)
			p.bear()
		}
		return limit - p.eased
	}
	require.Equal(t, 4, looks(50, quick))
	require.Equal(t, 4, looks(50, 5*quick), "load is not strain")
	require.Equal(t, 1, looks(50, slow))
	require.Equal(t, 4, looks(200, quick))
	require.Equal(t, 4, looks(1, slow), "one slow look is not strain")
}

// A remote database is slow to answer, but not strained.
func TestPaceKnowsADistantDatabase(t *testing.T) {
	t.Parallel()
	var p pace
	for range 100 {
		p.feel(30*time.Millisecond, 4)
	}
	require.Zero(t, p.eased)
}

// An error of the database halves the workers; transactions without trouble bring them back.
func TestPaceEasesAfterErrors(t *testing.T) {
	t.Parallel()
	var p pace
	p.ease(4)
	require.Equal(t, 2, 4-p.eased)
	for range 3 {
		p.ease(4)
	}
	require.Equal(t, 1, 4-p.eased, "never the last one")
	for range 3 * easeAfter {
		p.bear()
	}
	require.Zero(t, p.eased)
}

// A batch is what fits into the time box, which a backlog and a slow machine stretch.
func TestBatchSizeFollowsTimes(t *testing.T) {
	t.Parallel()
	c := &Consumer{cfg: ConsumerConfig{}.withDefaults()}
	ln := &lane{c: c, window: widest(c), perEvent: time.Millisecond}
	require.Equal(t, 20, ln.batchSize())
	ln.queue = make([]*delivery, ln.window)
	require.Equal(t, 60, ln.batchSize(), "a backlog")
	ln.perEvent = 10 * time.Millisecond
	require.Equal(t, 6, ln.batchSize())
	ln.overhead = 50 * time.Millisecond
	require.Equal(t, 40, ln.batchSize(), "a transaction costs more than its box")
	ln.perEvent = time.Minute
	require.Equal(t, 1, ln.batchSize())
	ln.perEvent = 0
	require.Equal(t, c.cfg.Batch, ln.batchSize())
	ln.refused()
	ln.accepted(waryFor - 1)
	require.Equal(t, 1, ln.batchSize(), "a handler has refused one lately")
	ln.accepted(1)
	require.Equal(t, c.cfg.Batch, ln.batchSize())
}
