package outbox

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// In a backlog claims are larger, but never smaller than what was asked for.
func TestClaimSize(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ configured, backlog int }{{1, 5}, {100, 500}, {200, 500}, {1000, 1000}} {
		s := &session{p: &Publisher{cfg: PublisherConfig{BatchSize: c.configured}}}
		require.Equal(t, c.configured, s.claimSize(false))
		require.Equal(t, c.backlog, s.claimSize(true))
	}
}
