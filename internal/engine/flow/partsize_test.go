package flow_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/bluecone-go/bluecone/internal/engine/flow"
)

// A refusal halves what shares a transaction, full transactions make it grow one by one, and what never ran and what
// runs again know nothing of each other.
func TestARefusalHalvesWhatSharesATransaction(t *testing.T) {
	t.Parallel()
	for _, first := range []bool{true, false} {
		var w flow.PartSize
		require.Equal(t, 500, w.Limit(first, 500))
		require.False(t, w.Any())
		w.Shrink(first, 8)
		require.Equal(t, 4, w.Limit(first, 500))
		require.Equal(t, 3, w.Limit(first, 3))
		require.True(t, w.Any())
		require.Equal(t, 500, w.Limit(!first, 500), "that says nothing about the others")
		w.Grow(!first, 100)
		require.Equal(t, 4, w.Limit(first, 500), "nor the other way round")
		w.Grow(first, 3)
		require.Equal(t, 4, w.Limit(first, 500), "less than a full one")
		w.Grow(first, 1)
		require.Equal(t, 5, w.Limit(first, 500))
		w.Shrink(first, 1)
		require.Equal(t, 5, w.Limit(first, 500), "it was noted when it shared a transaction")
		w.Shrink(first, 2)
		w.Shrink(first, 1)
		require.Equal(t, 1, w.Limit(first, 500))
		for most := 1; most <= 16; most++ {
			require.Equal(t, most, w.Limit(first, 500))
			w.Grow(first, most)
		}
		require.Equal(t, 500, w.Limit(first, 500))
		require.False(t, w.Any())
		w.Shrink(first, 1)
		require.Equal(t, 8, w.Limit(first, 500))
	}
}

// However many are refused, transactions and repeated runs together stay far below one transaction for each.
func TestRefusalsCostFewTransactions(t *testing.T) {
	t.Parallel()
	const events = 20_000
	for _, of := range []struct {
		refused float64
		most    float64 // transactions for an event
	}{{0, 0.05}, {0.01, 0.3}, {0.06, 0.6}, {0.2, 1}, {1, 1.01}} {
		var w flow.PartSize
		rng, transactions := rand.New(rand.NewPCG(1, 2)), 0
		for done := 0; done < events; {
			n := w.Limit(true, 40)
			at := 0
			for at < n && rng.Float64() >= of.refused {
				at++
			}
			transactions++
			if done += at; at == n {
				w.Grow(true, n)
				continue
			}
			done++
			w.Shrink(true, n)
			if n > 1 {
				transactions += 2 // what had gone well, at once, and what was refused
			}
		}
		require.LessOrEqual(t, float64(transactions)/events, of.most, "%v refused", of.refused)
	}
}

// Whatever is refused: a part has at least one delivery and no more than there are, what never ran and what runs again know
// nothing of each other, and after some time in which all are accepted there is no limit.
func TestPartSizeRecovers(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var both, alone flow.PartSize // alone sees only what never ran
		n := rapid.IntRange(1, 500)
		for range rapid.IntRange(0, 60).Draw(t, "transactions") {
			first, n := rapid.Bool().Draw(t, "first"), n.Draw(t, "n")
			do := (*flow.PartSize).Grow
			if rapid.Bool().Draw(t, "refused") {
				do = (*flow.PartSize).Shrink
			}
			if do(&both, first, n); first {
				do(&alone, true, n)
			}
			require.Equal(t, alone.Limit(true, 500), both.Limit(true, 500))
			for _, first := range []bool{true, false} {
				require.GreaterOrEqual(t, both.Limit(first, n), 1)
				require.LessOrEqual(t, both.Limit(first, n), n)
			}
		}
		for range 16 {
			both.Grow(true, 16)
			both.Grow(false, 16)
		}
		require.False(t, both.Any())
	})
}
