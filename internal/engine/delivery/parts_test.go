package delivery

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/engine/flow"
	"github.com/bluecone-go/bluecone/internal/engine/settle"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/store"
)

// When a handler refuses one of a batch, events of its type share fewer transactions for a while, and those of other types as many.
func TestARefusalIsHeldAgainstOnlyItsOwnType(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	c := h.consumer("C", handler.Config{}, nil)
	h.handle(c, "refunded", &handler.Handler{}, refuses("r"))
	h.open()
	var events []*delivery
	for i := range 6 {
		events = append(events, h.event(fmt.Sprint(i), fmt.Sprint(i)))
	}
	ln := h.lanes.lanes["C"]
	ln.speed.Times.ObserveCall(time.Microsecond)
	h.offer("C", slices.Insert(events, 3, h.eventOf("refunded", "r", "r"))...)
	require.Equal(t, row{store.Failed, 1, "no"}, h.row("C", "r"))
	require.Equal(t, 6, h.rows("C", store.Success))
	require.Less(t, ln.speed.Parts.Limit(flow.Group{Type: "refunded"}, 100), 100)
	require.Equal(t, 100, ln.speed.Parts.Limit(flow.Group{Type: anEvent}, 100))
}

// A lane that is closed while it runs a batch in parts gives back what has not begun.
func TestClosedLaneGivesBackTheRestOfABatch(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.consumer("C", handler.Config{}, func(context.Context, bun.Tx, *handler.Message) error {
		if len(h.called()) == 1 {
			return errNo
		}
		h.lanes.Quiesce(context.Background())
		return nil
	})
	h.open()
	h.lanes.lanes["C"].speed.Times.ObserveCall(time.Microsecond)
	h.lanes.lanes["C"].speed.Parts.Shrink(flow.Group{Type: anEvent}, 2)
	var events []*delivery
	for i := range 6 {
		events = append(events, h.event(fmt.Sprint(i), fmt.Sprint(i)))
	}
	h.offer("C", events...)
	require.Equal(t, row{store.Failed, 1, "no"}, h.row("C", "0"))
	require.Equal(t, settle.Succeeded, h.outcome("1"))
	for _, id := range []string{"2", "3", "4", "5"} {
		require.Equal(t, settle.Abandoned, h.outcome(id))
	}
}

// A batch that was taken before the pause is put off.
func TestPauseStopsABatchBetweenItsParts(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.consumer("C", handler.Config{}, func(context.Context, bun.Tx, *handler.Message) error {
		h.pause("C", true)
		return nil
	})
	h.open()
	ln := h.lanes.lanes["C"]
	ln.speed.Times.ObserveCall(time.Microsecond)
	ln.speed.Prefetch.Observe(1, time.Millisecond)
	ln.speed.Parts.Shrink(flow.Group{Type: anEvent}, 2)
	for i := range 3 {
		h.waiting("C", fmt.Sprint(i), fmt.Sprint(i))
	}
	h.retry("C")
	require.Len(t, h.called(), 1)
	require.Equal(t, []int{1, 2, 0}, []int{h.rows("C", store.Success), h.rows("C", store.Pending), h.rows("C", store.Processing)})
}
