package flow_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/bluecone-go/bluecone/internal/engine/flow"
)

func TestClaimTakesWhatFittedLastTime(t *testing.T) {
	t.Parallel()
	type seen struct {
		fitted int
		all    bool
	}
	for name, c := range map[string]struct {
		claims []seen
		limit  int
	}{
		"at first":           {limit: 200},
		"all fit":            {claims: []seen{{150, true}}, limit: 200},
		"some fit":           {claims: []seen{{30, false}}, limit: 30},
		"none fits":          {claims: []seen{{0, false}}, limit: 1},
		"then all do":        {claims: []seen{{30, false}, {30, true}}, limit: 60},
		"for long":           {claims: []seen{{30, false}, {30, true}, {60, true}, {120, true}}, limit: 200},
		"none is claimed":    {claims: []seen{{30, false}, {0, true}}, limit: 60},
		"less fit than then": {claims: []seen{{30, false}, {20, false}}, limit: 20},
	} {
		size := flow.NewClaimSize(200)
		for _, s := range c.claims {
			size.Observe(s.fitted, s.all)
		}
		require.Equal(t, c.limit, size.Limit(), name)
	}
}

// Whatever fits: a claim takes something, no more than it may, and after a while in which all fit as much as it may.
func TestClaimSizeRecovers(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		most := rapid.IntRange(1, 500).Draw(t, "most")
		size := flow.NewClaimSize(most)
		for range rapid.IntRange(0, 30).Draw(t, "claims") {
			size.Observe(rapid.IntRange(0, size.Limit()).Draw(t, "fitted"), rapid.Bool().Draw(t, "all"))
			require.GreaterOrEqual(t, size.Limit(), 1)
			require.LessOrEqual(t, size.Limit(), most)
		}
		for range 9 {
			size.Observe(0, true)
		}
		require.Equal(t, most, size.Limit())
	})
}
