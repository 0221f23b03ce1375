package delivery

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/engine/settle"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/store"
)

// A handler without a transaction is called while a row of the delivery is leased, and its answer is stored in that row.
func TestExternalDeliveryIsLeasedWhileItRuns(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer error
		want   row
	}{
		"it succeeds": {nil, row{store.Success, 1, ""}},
		"it fails":    {errNo, row{store.Failed, 1, "no"}},
		"it gives up": {handler.Permanent(errNo), row{store.Dead, 1, "no"}},
		"it skips":    {&handler.SkipError{Reason: "not ours"}, row{store.Skipped, 1, "not ours"}},
		"it is away":  {handler.Unavailable(errNo), row{store.Failed, 0, "no"}},
	} {
		for kind, waits := range map[string]bool{"a new event": false, "a waiting delivery": true} {
			t.Run(name+", "+kind, func(t *testing.T) {
				t.Parallel()
				h := newHouse(t)
				var during row
				h.external("C", handler.Config{}, func(context.Context, bun.Tx, *handler.Message) error {
					during = h.row("C", "e")
					return c.answer
				})
				h.open()
				if waits {
					h.waiting("C", "e", "1")
					h.retry("C")
				} else {
					h.offer("C", h.event("e", "1"))
				}
				require.Equal(t, store.Processing, during.status)
				require.Equal(t, c.want, h.row("C", "e"))
				require.Equal(t, []string{"e"}, h.called())
			})
		}
	}
}

// What has a row already, and what an earlier event of its aggregate blocks, is not called.
func TestExternalDeliveryAsksFirst(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.external("C", handler.Config{}, refuses("a"))
	h.open()
	h.waiting("C", "recorded", "9")
	h.set("C", "recorded", "status = 'SUCCESS', attempts = 7")
	h.exec("UPDATE bc_outbox_event SET status = 'DISPATCHING', locked_by = ?, next_retry_at = "+h.d.After, me, lease.Microseconds())
	h.offer("C", h.claimed("recorded"), h.event("a", "1"), h.event("b", "1"))
	require.Equal(t, settle.Recorded, h.outcome("recorded"))
	require.Equal(t, row{store.Success, 7, ""}, h.row("C", "recorded"))
	require.Equal(t, row{store.Failed, 1, "no"}, h.row("C", "a"))
	require.Equal(t, row{store.Pending, 0, ""}, h.row("C", "b"), "it waits for a")
	h.waiting("C", "c", "1")
	h.retry("C")
	require.Equal(t, []string{"a"}, h.called())
}

// If the result of an effect cannot be stored the delivery fails: it will happen again, and the log says so.
func TestResultOfAnEffectThatIsNotStored(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.external("C", handler.Config{}, nil)
	h.open()
	h.exec("CREATE TRIGGER no_success BEFORE UPDATE ON bc_event_consume_log WHEN NEW.status = 'SUCCESS' BEGIN SELECT RAISE(ABORT, 'no'); END")
	h.offer("C", h.event("e", "1"))
	require.Equal(t, store.Failed, h.row("C", "e").status)
	require.Contains(t, h.log(), "the effect happened but its result could not be stored; it will happen again")
}

// If its row cannot be written the handler is not called.
func TestExternalDeliveryWithoutALeaseIsNotCalled(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.external("C", handler.Config{}, nil)
	h.open()
	h.exec("CREATE TRIGGER no_row BEFORE INSERT ON bc_event_consume_log WHEN NEW.status = 'PROCESSING' BEGIN SELECT RAISE(ABORT, 'no'); END")
	h.offer("C", h.event("e", "1"))
	require.Empty(t, h.called())
	require.Equal(t, row{store.Pending, 0, ""}, h.row("C", "e"), "it is put off")
	h.exec("CREATE TRIGGER no_start BEFORE UPDATE OF started ON bc_event_consume_log WHEN NEW.started = 1 " +
		"BEGIN SELECT RAISE(ABORT, 'no'); END")
	h.due()
	h.retry("C")
	require.Empty(t, h.called())
	require.Equal(t, store.Pending, h.row("C", "e").status)
}

// The order of a consumer with both kinds of handlers is one order, and an external delivery shares its batch with nobody.
func TestExternalDeliveriesRunOneByOne(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.external("C", handler.Config{}, nil)
	h.open()
	h.lanes.lanes["C"].speed.Times.ObserveCall(time.Microsecond)
	h.offer("C", h.event("a", "1"), h.event("b", "1"), h.event("c", "1"))
	require.Equal(t, []string{"a", "b", "c"}, h.called())
	require.Equal(t, 3, h.rows("C", store.Success))
}
