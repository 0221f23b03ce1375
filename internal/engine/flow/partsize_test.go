package flow_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/bluecone-go/bluecone/internal/engine/flow"
)

// A refusal halves what shares a transaction, full transactions make it grow one by one, and each event type, and what never ran and
// what runs again of it, know nothing of each other.
func TestARefusalHalvesWhatSharesATransaction(t *testing.T) {
	t.Parallel()
	others := []flow.Group{{Type: "a"}, {Type: "a", Again: true}, {Type: "b"}, {Type: "b", Again: true}}
	for _, g := range others {
		var w flow.PartSize
		require.Equal(t, 500, w.Limit(g, 500))
		require.False(t, w.Any())
		w.Shrink(g, 8)
		require.Equal(t, 4, w.Limit(g, 500))
		require.Equal(t, 3, w.Limit(g, 3))
		require.True(t, w.Any())
		for _, other := range others {
			if other == g {
				continue
			}
			require.Equal(t, 500, w.Limit(other, 500), "that says nothing about the others")
			w.Grow(other, 100)
		}
		require.Equal(t, 4, w.Limit(g, 500), "nor the other way round")
		w.Grow(g, 3)
		require.Equal(t, 4, w.Limit(g, 500), "less than a full one")
		w.Grow(g, 1)
		require.Equal(t, 5, w.Limit(g, 500))
		w.Shrink(g, 1)
		require.Equal(t, 5, w.Limit(g, 500), "it was noted when it shared a transaction")
		w.Shrink(g, 2)
		w.Shrink(g, 1)
		require.Equal(t, 1, w.Limit(g, 500))
		for most := 1; most <= 16; most++ {
			require.Equal(t, most, w.Limit(g, 500))
			w.Grow(g, most)
		}
		require.Equal(t, 500, w.Limit(g, 500))
		require.False(t, w.Any())
		w.Shrink(g, 1)
		require.Equal(t, 8, w.Limit(g, 500))
	}
}

// Deliveries of different groups share a transaction until one of the groups has a limit: then it is alone.
func TestALimitedGroupIsAlone(t *testing.T) {
	t.Parallel()
	a, again, b := flow.Group{Type: "a"}, flow.Group{Type: "a", Again: true}, flow.Group{Type: "b"}
	var w flow.PartSize
	require.True(t, w.Joins(a, b))
	w.Shrink(a, 8)
	require.False(t, w.Joins(a, b))
	require.False(t, w.Joins(b, a))
	require.False(t, w.Joins(again, a))
	require.True(t, w.Joins(a, a))
	require.True(t, w.Joins(again, b))
	for range enoughTogether {
		w.Grow(a, enoughTogether)
	}
	require.True(t, w.Joins(a, b))
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
		g := flow.Group{Type: "a"}
		rng, transactions := rand.New(rand.NewPCG(1, 2)), 0
		for done := 0; done < events; {
			n := w.Limit(g, 40)
			at := 0
			for at < n && rng.Float64() >= of.refused {
				at++
			}
			transactions++
			if done += at; at == n {
				w.Grow(g, n)
				continue
			}
			done++
			w.Shrink(g, n)
			if n > 1 {
				transactions += 2 // what had gone well, at once, and what was refused
			}
		}
		require.LessOrEqual(t, float64(transactions)/events, of.most, "%v refused", of.refused)
	}
}

// enoughTogether is where a limit ends.
const enoughTogether = 16

// Whatever is refused: a part has at least one delivery and no more than there are, groups know nothing of each other, and after
// some time in which all are accepted there is no limit.
func TestPartSizeRecovers(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var all, alone flow.PartSize // alone sees only one group
		groups := []flow.Group{{Type: "a"}, {Type: "a", Again: true}, {Type: "b"}}
		n := rapid.IntRange(1, 500)
		for range rapid.IntRange(0, 60).Draw(t, "transactions") {
			g, n := rapid.SampledFrom(groups).Draw(t, "group"), n.Draw(t, "n")
			do := (*flow.PartSize).Grow
			if rapid.Bool().Draw(t, "refused") {
				do = (*flow.PartSize).Shrink
			}
			if do(&all, g, n); g == groups[0] {
				do(&alone, g, n)
			}
			require.Equal(t, alone.Limit(groups[0], 500), all.Limit(groups[0], 500))
			for _, g := range groups {
				require.GreaterOrEqual(t, all.Limit(g, n), 1)
				require.LessOrEqual(t, all.Limit(g, n), n)
			}
		}
		for range enoughTogether {
			for _, g := range groups {
				all.Grow(g, enoughTogether)
			}
		}
		require.False(t, all.Any())
	})
}
