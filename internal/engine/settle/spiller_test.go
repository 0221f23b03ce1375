package settle

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// Whoever waits until another goroutine has written what is held does so only as long as it has time.
func TestWaitForWhoWritesHasAnEnd(t *testing.T) {
	t.Parallel()
	p := NewSpiller(SpillerConfig{})
	p.writing <- struct{}{}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, p.Write(ctx), context.Canceled)
	<-p.writing
	require.NoError(t, p.Write(t.Context()))
	require.Empty(t, p.writing, "it is free again")
}
