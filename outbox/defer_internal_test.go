package outbox

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// Whoever waits until somebody else has written what is deferred does so only as long as it has time.
func TestWaitForWhoWritesHasAnEnd(t *testing.T) {
	t.Parallel()
	s := &session{writes: make(chan struct{}, 1)}
	s.writes <- struct{}{}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, s.writeDeferred(ctx), context.Canceled)
	<-s.writes
	require.NoError(t, s.writeDeferred(t.Context()))
	require.Empty(t, s.writes, "it is free again")
}
