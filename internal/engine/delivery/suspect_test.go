package delivery

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/engine/claim"
	"github.com/bluecone-go/bluecone/internal/engine/settle"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/store"
)

// orphan makes a delivery that a process had announced that has died since: its lease has run out.
func (h *house) orphan(consumer, id, aggregate string, attempts int) {
	h.t.Helper()
	h.waiting(consumer, id, aggregate)
	h.set(consumer, id, "status = 'PROCESSING', started = 1, attempts = ?, locked_by = 'dead', next_retry_at = "+h.d.After, attempts,
		-dialect.Micro(time.Second))
}

// What a process that has died may have started runs alone, and is counted before its handler is called.
func TestSuspectIsCountedBeforeItRuns(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	var seen []int
	h.consumer("C", handler.Config{}, func(context.Context, bun.Tx, *handler.Message) error {
		seen = append(seen, h.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE started = 2"))
		return nil
	})
	h.open()
	h.lanes.lanes["C"].speed.Times.ObserveCall(time.Microsecond)
	for id, aggregate := range map[string]string{"a": "1", "b": "2", "c": "3"} {
		h.orphan("C", id, aggregate, 0)
	}
	h.retry("C")
	require.Equal(t, 3, h.rows("C", store.Success))
	require.Equal(t, []int{1, 1, 1}, []int{h.effects("a"), h.effects("b"), h.effects("c")})
	require.Equal(t, []int{1, 1, 1}, seen, "its row says so, and no other one: they run one after the other")
}

// A suspect that fails has used up the attempt that was counted, not another one.
func TestSuspectThatFailsCountsOnce(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.consumer("C", handler.Config{}, refuses("e"))
	h.open()
	h.orphan("C", "e", "1", 0)
	h.retry("C")
	require.Equal(t, row{store.Failed, 1, "no"}, h.row("C", "e"))
}

// A suspect whose attempts are used up is DEAD without another run.
func TestSuspectWithoutAttemptsIsDead(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.consumer("C", handler.Config{MaxAttempts: 2}, nil)
	h.open()
	h.orphan("C", "e", "1", 2)
	h.retry("C")
	require.Equal(t, store.Dead, h.row("C", "e").status)
	require.Contains(t, h.row("C", "e").err, "all 2 attempts are used up, the last of them ended without an answer")
	require.Empty(t, h.called())
}

// An event whose lease had run out may have been started by whoever had it: it gets a row before it runs. If it has one, it
// does not run.
func TestSuspectEventGetsARowBeforeItRuns(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		recorded bool
		answer   answers
		want     row
		outcome  settle.Outcome
	}{
		"it succeeds":       {want: row{store.Success, 1, ""}, outcome: settle.Succeeded},
		"it fails":          {answer: refuses("e"), want: row{store.Failed, 1, "no"}, outcome: settle.Recorded},
		"it has a row":      {recorded: true, want: row{store.Success, 5, ""}, outcome: settle.Recorded},
		"it gives up":       {answer: always(handler.Permanent(errNo)), want: row{store.Dead, 1, "no"}, outcome: settle.Recorded},
		"it asks for later": {answer: always(handler.RetryAfter(errNo, time.Hour)), want: row{store.Failed, 0, "no"}, outcome: settle.Recorded},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHouse(t)
			h.consumer("C", handler.Config{}, c.answer)
			h.open()
			if c.recorded {
				h.waiting("C", "e", "1")
				h.set("C", "e", "status = 'SUCCESS', attempts = 5")
			} else {
				h.event("e", "1")
			}
			e := h.claimed("e")
			e.isSuspected, e.isFresh, e.kind = true, false, claim.Expired
			h.offer("C", e)
			require.Equal(t, c.want, h.row("C", "e"))
			require.Equal(t, c.outcome, h.outcome("e"))
		})
	}
}

// While another suspect that has been counted before runs, a suspect waits: it is not known which of them kills.
func TestSuspectWaitsWhileAnotherRunsAlone(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.consumer("C", handler.Config{}, nil)
	h.open()
	over, ok := h.lanes.takeSuspect(true)
	require.True(t, ok)
	h.orphan("C", "a", "1", 0)
	e := h.event("b", "2")
	e.isSuspected = true
	h.offer("C", e)
	h.retry("C")
	require.Empty(t, h.called())
	require.Equal(t, row{store.Pending, 0, ""}, h.row("C", "b"))
	require.Equal(t, settle.Recorded, h.outcome("b"))
	require.NotEqual(t, store.Processing, h.row("C", "a").status, "its lease is given back")
	over()
	h.due()
	h.retry("C")
	require.Equal(t, 2, h.rows("C", store.Success))
}

// A suspect whose lease has passed to another instance is left to that one.
func TestSuspectThatIsLostIsLeft(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.external("C", handler.Config{}, nil)
	h.open()
	h.orphan("C", "a", "1", 0)
	h.orphan("C", "b", "2", 0)
	ln := h.lanes.lanes["C"]
	claimed, err := ln.retries.claim(t.Context(), claim.Limits{Processing: 10}, 0, nil)
	require.NoError(t, err)
	require.Len(t, claimed.Deliveries, 2)
	h.set("C", "a", "locked_by = 'other', lock_version = lock_version + 1")
	ln.retries.admit(t.Context(), claimed.Deliveries)
	h.idle()
	require.Equal(t, []string{"b"}, h.called())
	require.Equal(t, store.Processing, h.row("C", "a").status)
	require.Equal(t, store.Success, h.row("C", "b").status)
}

// A suspect that has lost an attempt runs when no other suspect does, so that only who kills loses the last one.
func TestSuspectThatHasLostAnAttemptRunsAlone(t *testing.T) {
	t.Parallel()
	var l Lanes
	first, ok := l.takeSuspect(false)
	require.True(t, ok)
	second, ok := l.takeSuspect(false)
	require.True(t, ok, "those that have lost none run side by side")
	_, ok = l.takeSuspect(true)
	require.False(t, ok, "others run")
	first()
	_, ok = l.takeSuspect(true)
	require.False(t, ok, "another one runs")
	second()
	alone, ok := l.takeSuspect(true)
	require.True(t, ok)
	_, ok = l.takeSuspect(false)
	require.False(t, ok, "one that has lost an attempt runs")
	_, ok = l.takeSuspect(true)
	require.False(t, ok, "another one that has lost an attempt runs")
	alone()
}
