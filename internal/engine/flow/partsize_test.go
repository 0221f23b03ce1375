package flow_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/engine/flow"
)

// A refusal halves what shares a transaction, full transactions make it grow one by one, and what never ran and what
// runs again know nothing of each other.
func TestARefusalHalvesWhatSharesATransaction(t *testing.T) {
	t.Parallel()
	for _, first := range []bool{true, false} {
		var w flow.PartSize
		require.Equal(t, 500, w.Together(first, 500))
		require.False(t, w.Any())
		w.Refused(first, 8)
		require.Equal(t, 4, w.Together(first, 500))
		require.Equal(t, 3, w.Together(first, 3))
		require.True(t, w.Any())
		require.Equal(t, 500, w.Together(!first, 500), "that says nothing about the others")
		w.Accepted(!first, 100)
		require.Equal(t, 4, w.Together(first, 500), "nor the other way round")
		w.Accepted(first, 3)
		require.Equal(t, 4, w.Together(first, 500), "less than a full one")
		w.Accepted(first, 1)
		require.Equal(t, 5, w.Together(first, 500))
		w.Refused(first, 1)
		require.Equal(t, 5, w.Together(first, 500), "it was noted when it shared a transaction")
		w.Refused(first, 2)
		w.Refused(first, 1)
		require.Equal(t, 1, w.Together(first, 500))
		for most := 1; most <= 16; most++ {
			require.Equal(t, most, w.Together(first, 500))
			w.Accepted(first, most)
		}
		require.Equal(t, 500, w.Together(first, 500))
		require.False(t, w.Any())
		w.Refused(first, 1)
		require.Equal(t, 8, w.Together(first, 500))
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
			n := w.Together(true, 40)
			at := 0
			for at < n && rng.Float64() >= of.refused {
				at++
			}
			transactions++
			if done += at; at == n {
				w.Accepted(true, n)
				continue
			}
			done++
			w.Refused(true, n)
			if n > 1 {
				transactions += 2 // what had gone well, at once, and what was refused
			}
		}
		require.LessOrEqual(t, float64(transactions)/events, of.most, "%v refused", of.refused)
	}
}
