package delivery

import (
	"cmp"
	"context"
	"database/sql/driver"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/engine/settle"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/inject"
	"github.com/bluecone-go/bluecone/internal/store"
)

var errNo = errors.New("no")

// refuses answers errNo to some events.
func refuses(ids ...string) answers {
	return func(_ context.Context, _ bun.Tx, m *handler.Message) error {
		if slices.Contains(ids, m.Event.ID) {
			return errNo
		}
		return nil
	}
}

// always answers the same.
func always(err error) answers {
	return func(context.Context, bun.Tx, *handler.Message) error { return err }
}

// What a handler answers decides what the row of the delivery says, whether its effect stays, and what the publisher hears.
func TestAnswerOfAHandlerIsStored(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer  answers
		max     int
		want    row
		effects int
		outcome settle.Outcome
		dead    bool
	}{
		"it succeeds": {want: row{store.Success, 1, ""}, effects: 1, outcome: settle.Succeeded},
		"it fails":    {answer: refuses("e"), want: row{store.Failed, 1, "no"}, outcome: settle.Recorded},
		"it fails for the last time": {
			answer: refuses("e"), max: 1, want: row{store.Dead, 1, "no"}, outcome: settle.Recorded, dead: true,
		},
		"it gives up": {
			answer: always(handler.Permanent(errNo)),
			want:   row{store.Dead, 1, "no"}, outcome: settle.Recorded, dead: true,
		},
		"it skips the event": {
			answer: always(&handler.SkipError{Reason: "not ours"}),
			want:   row{store.Skipped, 1, "not ours"}, outcome: settle.Recorded,
		},
		"it asks for another run": {
			answer: always(handler.RetryAfter(errNo, time.Hour)),
			want:   row{store.Failed, 0, "no"}, outcome: settle.Recorded,
		},
		"its service is away": {
			answer: always(handler.Unavailable(errNo)),
			want:   row{store.Failed, 0, "no"}, outcome: settle.Recorded,
		},
		"it panics": {
			answer: func(context.Context, bun.Tx, *handler.Message) error { panic("oh") },
			want:   row{store.Failed, 1, "handler panicked: oh"}, outcome: settle.Recorded,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHouse(t)
			h.consumer("C", handler.Config{MaxAttempts: cmp.Or(c.max, 3)}, c.answer)
			h.open().offer("C", h.event("e", "1"))
			got := h.row("C", "e")
			if c.want.err == "" && c.want.status == store.Failed {
				got.err = ""
			}
			require.Equal(t, c.want, got)
			require.Equal(t, c.effects, h.effects("e"))
			require.Equal(t, c.outcome, h.outcome("e"))
			require.Equal(t, []string{"e"}, h.called())
			require.Equal(t, c.dead, len(h.dead) == 1, "whoever wants to know of dead letters is told")
		})
	}
}

// A handler that rolls its transaction back has not succeeded, whatever it answers: that is an attempt.
func TestTransactionThatAHandlerEndsCounts(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.consumer("C", handler.Config{}, func(ctx context.Context, tx bun.Tx, _ *handler.Message) error {
		_, _ = tx.ExecContext(ctx, "ROLLBACK")
		return nil
	})
	h.open().offer("C", h.event("e", "1"))
	require.Equal(t, store.Failed, h.row("C", "e").status)
	require.Equal(t, 1, h.row("C", "e").attempts)
	require.Len(t, h.called(), 1)
	require.Zero(t, h.effects("e"))
}

// A batch is one transaction, in the order of each aggregate.
func TestBatchIsOneTransaction(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	var commits atomic.Int64
	h.regs.Inject(inject.Faults{BeforeCommit: func(string, []string) error { commits.Add(1); return nil }})
	h.consumer("C", handler.Config{}, nil)
	h.open()
	h.lanes.lanes["C"].speed.Times.ObserveCall(time.Microsecond)
	h.offer("C", h.event("a", "1"), h.event("b", "2"), h.event("c", "1"))
	require.Equal(t, []string{"a", "b", "c"}, h.called())
	require.Equal(t, 3, h.rows("C", store.Success))
	require.EqualValues(t, 1, commits.Load())
}

// One event that fails in a batch fails alone: what is behind it in its aggregate waits, and the others succeed, once.
func TestEventThatFailsInABatchFailsAlone(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.consumer("C", handler.Config{}, refuses("b"))
	h.open()
	h.lanes.lanes["C"].speed.Times.ObserveCall(time.Microsecond)
	h.offer("C", h.event("a", "1"), h.event("b", "2"), h.event("c", "3"), h.event("d", "2"), h.event("e", "4"))
	for _, id := range []string{"a", "c", "e"} {
		require.Equal(t, row{store.Success, 1, ""}, h.row("C", id))
		require.Equal(t, 1, h.effects(id))
	}
	require.Equal(t, row{store.Failed, 1, "no"}, h.row("C", "b"))
	require.Equal(t, row{store.Pending, 0, ""}, h.row("C", "d"), "it waits for the one before it")
	require.Equal(t, settle.Recorded, h.outcome("d"))
	require.NotContains(t, h.called(), "d")
}

// An unordered consumer lets nothing wait for an earlier event.
func TestUnorderedConsumerWaitsForNothing(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.consumer("C", handler.Config{Unordered: true}, refuses("a"))
	h.open().offer("C", h.event("a", "1"), h.event("b", "1"))
	require.Equal(t, row{store.Failed, 1, "no"}, h.row("C", "a"))
	require.Equal(t, row{store.Success, 1, ""}, h.row("C", "b"))
}

// A delivery that has a row already is not run: not even if its claim took it for one that nobody ever had.
func TestDeliveryWithARowIsNotRunAgain(t *testing.T) {
	t.Parallel()
	for name, fresh := range map[string]bool{"it is looked for": false, "the unique key refuses it": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHouse(t)
			h.consumer("C", handler.Config{}, nil)
			h.waiting("C", "e", "1")
			h.set("C", "e", "status = 'SUCCESS', attempts = 7")
			h.exec("UPDATE bc_outbox_event SET status = 'DISPATCHING', locked_by = ?, next_retry_at = "+h.d.After, me, lease.Microseconds())
			c := h.claimed("e")
			c.isFresh = fresh
			h.open().offer("C", c)
			require.Equal(t, settle.Recorded, h.outcome("e"))
			require.Equal(t, row{store.Success, 7, ""}, h.row("C", "e"))
			require.Empty(t, h.called())
		})
	}
}

// Whether an unknown COMMIT has happened is read back: if not, the delivery runs again, and in both cases its effect is there once.
func TestUnknownCommitIsReadBack(t *testing.T) {
	t.Parallel()
	for name, happened := range map[string]bool{"it has happened": true, "it has not": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHouse(t)
			var once atomic.Bool
			lost := func(string, []string) error {
				if once.CompareAndSwap(false, true) {
					return driver.ErrBadConn
				}
				return nil
			}
			if happened {
				h.regs.Inject(inject.Faults{AfterCommit: lost})
			} else {
				h.regs.Inject(inject.Faults{BeforeCommit: lost})
			}
			h.consumer("C", handler.Config{}, nil)
			h.open().offer("C", h.event("e", "1"))
			require.Equal(t, settle.Succeeded, h.outcome("e"))
			require.Equal(t, row{store.Success, 1, ""}, h.row("C", "e"))
			require.Equal(t, 1, h.effects("e"))
			require.Equal(t, map[bool]int{true: 1, false: 2}[happened], len(h.called()))
		})
	}
}

// A transaction that the database spoils is run again, uncounted, a batch in halves. If the database stays away, the delivery is
// put off.
func TestSpoiltTransactionIsRunAgain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spoilt int64
		want   row
	}{
		"once":   {1, row{store.Success, 1, ""}},
		"always": {1000, row{store.Pending, 0, ""}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHouse(t)
			var began atomic.Int64
			h.regs.Inject(inject.Faults{BeforeDelivery: func(string, []string) error {
				if began.Add(1) <= c.spoilt {
					return driver.ErrBadConn
				}
				return nil
			}})
			h.consumer("C", handler.Config{}, nil)
			h.open()
			h.lanes.lanes["C"].speed.Times.ObserveCall(time.Microsecond)
			h.offer("C", h.event("a", "1"), h.event("b", "2"))
			for _, id := range []string{"a", "b"} {
				require.Equal(t, c.want, h.row("C", id))
			}
			require.EqualValues(t, map[string]int64{"once": 3, "always": 1 + 2*infraTries}[name], began.Load())
		})
	}
}

// A delivery whose lease is lost before it runs, or while it does, is given up without a trace: somebody else has it.
func TestLostLeaseStopsItsDelivery(t *testing.T) {
	t.Parallel()
	t.Run("before it runs", func(t *testing.T) {
		t.Parallel()
		h := newHouse(t)
		h.consumer("C", handler.Config{}, nil)
		h.open()
		c := h.event("e", "1")
		h.lanes.Lose(c.held)
		h.offer("C", c)
		require.Equal(t, settle.Abandoned, h.outcome("e"))
		require.Empty(t, h.called())
	})
	t.Run("while it runs", func(t *testing.T) {
		t.Parallel()
		h := newHouse(t)
		began := make(chan struct{})
		h.consumer("C", handler.Config{}, func(ctx context.Context, _ bun.Tx, _ *handler.Message) error {
			close(began)
			<-ctx.Done()
			return context.Cause(ctx)
		})
		h.open()
		c := h.event("e", "1")
		require.Equal(t, 1, h.push("C", c))
		<-began
		h.lanes.Lose(c.held)
		h.idle()
		require.Equal(t, settle.Abandoned, h.outcome("e"))
		require.Zero(t, h.effects("e"))
		require.Zero(t, h.count("SELECT COUNT(*) FROM bc_event_consume_log"))
	})
	t.Run("the row of the event says so", func(t *testing.T) {
		t.Parallel()
		h := newHouse(t)
		h.consumer("C", handler.Config{}, nil)
		h.open()
		c := h.event("e", "1")
		h.exec("UPDATE bc_outbox_event SET locked_by = 'other', lock_version = 2")
		h.offer("C", c)
		require.Equal(t, settle.Abandoned, h.outcome("e"))
		require.Empty(t, h.called())
	})
}

// A lease that is out by the database's clock is looked at again before COMMIT.
func TestLeaseThatIsOutIsAskedForBeforeCommit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		taken bool
		want  settle.Outcome
	}{"nobody has taken the event over": {false, settle.Succeeded}, "another instance has": {true, settle.Abandoned}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHouse(t)
			h.consumer("C", handler.Config{}, func(ctx context.Context, tx bun.Tx, _ *handler.Message) error {
				if !c.taken {
					return nil
				}
				_, err := tx.ExecContext(ctx, "UPDATE bc_outbox_event SET lock_version = 2, locked_by = 'other'")
				return err
			})
			h.open()
			e := h.event("e", "1")
			e.held.Extend(1)
			h.offer("C", e)
			require.Equal(t, c.want, h.outcome("e"))
			require.Equal(t, map[bool]int{true: 0, false: 1}[c.taken], h.effects("e"))
		})
	}
}

// What a handler says of its delivery is stored with it.
func TestRecordOfAHandlerIsStored(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.consumer("C", handler.Config{}, func(_ context.Context, _ bun.Tx, m *handler.Message) error {
		m.Record = handler.Record{Key: "k", Result: map[string]int{"points": 3}}
		return nil
	})
	h.open().offer("C", h.event("e", "1"))
	require.Equal(t, 1, h.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE idempotency_key = 'k' AND consume_result = ?",
		`{"points":3}`))
}

// A payload that does not decode, or a row that cannot be read, ends DEAD without a call.
func TestWhatCannotBeDecodedIsDead(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.consumer("C", handler.Config{}, nil)
	h.open()
	number, malformed := h.event("n", "1"), h.event("m", "2")
	number.Event.Payload, malformed.Event.Malformed = []byte("7"), "its metadata is no object"
	h.offer("C", number, malformed)
	require.Equal(t, store.Dead, h.row("C", "n").status)
	require.Contains(t, h.row("C", "m").err, "its metadata is no object")
	require.Empty(t, h.called())
}

// A hook for dead letters that panics ends nothing but itself.
func TestPanicOfTheDeadLetterHookIsContained(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.regs.OnDeadLetter = func(context.Context, handler.DeadLetter) { panic("oh") }
	h.consumer("C", handler.Config{MaxAttempts: 1}, refuses("a"))
	h.open().offer("C", h.event("a", "1"), h.event("b", "2"))
	require.Equal(t, store.Dead, h.row("C", "a").status)
	require.Equal(t, store.Success, h.row("C", "b").status)
	require.Contains(t, h.log(), "OnDeadLetter panicked")
}

// Tests of a user may have deliveries of different aggregates run in the reverse order.
func TestReorderKeepsTheOrderOfAnAggregate(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.regs.Inject(inject.Faults{Reorder: true})
	h.consumer("C", handler.Config{}, nil)
	h.open()
	h.offer("C", h.event("a", "1"), h.event("b", "2"), h.event("c", "1"))
	require.Equal(t, []string{"b", "a", "c"}, h.called())
}
