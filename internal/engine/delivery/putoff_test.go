package delivery

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/store"
)

// What a lane has put off is due when somebody asks for that, whether it came straight from a claim or from the consume log. What has
// run since, and has failed, waits for a time of its own.
func TestWhatWasPutOffIsWoken(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.consumer("C", handler.Config{}, func(_ context.Context, _ bun.Tx, m *handler.Message) error {
		if m.Event.ID != "direct" {
			return errNo
		}
		return nil
	})
	h.open()
	wake := func() bool {
		isAny, err := h.lanes.WakePutOff(t.Context())
		require.NoError(t, err)
		return isAny
	}
	due := func(id string) bool {
		return h.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE event_id = ? AND next_retry_at <= "+h.d.Now, id) == 1
	}
	h.waiting("C", "first", "1")
	h.waiting("C", "logged", "1")
	h.retry("C")
	require.False(t, wake(), "nobody has asked")

	h.lanes.RememberPutOff()
	h.offer("C", h.event("direct", "1"))
	h.set("C", "logged", "next_retry_at = created_at")
	h.retry("C")
	require.False(t, due("logged") || due("direct"))
	require.True(t, wake())
	require.True(t, due("logged") && due("direct"))
	require.False(t, wake(), "they were woken")

	h.retry("C") // and are put off again
	h.set("C", "first", "status = 'SKIPPED', next_retry_at = NULL")
	h.set("C", "logged", "next_retry_at = created_at")
	h.retry("C")
	require.Equal(t, row{store.Failed, 1, "no"}, h.row("C", "logged"))
	require.True(t, wake())
	require.True(t, due("direct"))
	require.False(t, due("logged"), "it has failed since")
}
