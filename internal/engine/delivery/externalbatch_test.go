package delivery

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/store"
)

// externalBatch registers a consumer whose handler takes many events and answers each. The calls are noted, each as one text.
func (h *house) externalBatch(cfg handler.Config, answer func(ms []*handler.Message) []error) {
	h.external("C", cfg, nil)
	of := h.regs.Consumers[0].Handler(anEvent)
	of.Batch = true
	of.Run = func(_ context.Context, _ handler.Transaction, ms []*handler.Message) error {
		var ids []string
		for _, m := range ms {
			ids = append(ids, m.Event.ID)
		}
		h.note(func() { h.calls = append(h.calls, strings.Join(ids, " ")) })
		return handler.Each(answer(ms), len(ms))
	}
	h.open()
	h.lanes.lanes["C"].speed.Times.ObserveCall(time.Microsecond) // many fit into a call
}

func allSucceed(ms []*handler.Message) []error { return make([]error, len(ms)) }

// Each event of a call is settled by its own error.
func TestEachEventOfAnExternalBatchHasItsOwnAnswer(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	answers := map[string]error{
		"b": errNo, "c": handler.Permanent(errNo), "d": &handler.SkipError{Reason: "not ours"}, "e": handler.RetryAfter(errNo, time.Hour),
	}
	h.externalBatch(handler.Config{}, func(ms []*handler.Message) (errs []error) {
		for _, m := range ms {
			errs = append(errs, answers[m.Event.ID])
		}
		return errs
	})
	h.offer("C", h.event("a", "1"), h.event("b", "2"), h.event("c", "3"), h.event("d", "4"), h.event("e", "5"), h.event("f", "6"))
	require.Equal(t, []string{"a b c d e f"}, h.called(), "one call")
	for id, want := range map[string]row{
		"a": {store.Success, 1, ""}, "b": {store.Failed, 1, "no"}, "c": {store.Dead, 1, "no"}, "d": {store.Skipped, 1, "not ours"},
		"e": {store.Failed, 0, "no"}, "f": {store.Success, 1, ""},
	} {
		require.Equal(t, want, h.row("C", id), id)
	}
}

// Of one aggregate one event is under way at a time, and what is behind one that has failed waits.
func TestExternalBatchHasOneEventOfAnAggregate(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.externalBatch(handler.Config{Concurrency: 1}, func(ms []*handler.Message) (errs []error) {
		for _, m := range ms {
			if m.Event.ID == "a1" {
				errs = append(errs, errNo)
			} else {
				errs = append(errs, nil)
			}
		}
		return errs
	})
	h.offer("C", h.event("a1", "1"), h.event("a2", "1"), h.event("b1", "2"), h.event("b2", "2"), h.event("a3", "1"))
	require.Equal(t, []string{"a1 b1", "b2"}, h.called())
	require.Equal(t, row{store.Pending, 0, ""}, h.row("C", "a2"))
	require.Equal(t, row{store.Pending, 0, ""}, h.row("C", "a3"))
	require.Equal(t, 2, h.rows("C", store.Success))
}

// Without order the whole batch may be of one aggregate.
func TestExternalBatchWithoutOrder(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.externalBatch(handler.Config{Unordered: true}, allSucceed)
	h.offer("C", h.event("a", "1"), h.event("b", "1"), h.event("c", "1"))
	require.Equal(t, []string{"a b c"}, h.called())
}

// What waits in the consume log is handed over in batches, too.
func TestExternalBatchOfRetries(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.externalBatch(handler.Config{}, allSucceed)
	h.waiting("C", "a", "1")
	h.waiting("C", "b", "2")
	h.retry("C")
	require.Equal(t, []string{"a b"}, h.called())
	require.Equal(t, 2, h.rows("C", store.Success))
}

// An answer that is not one error for each event, and a panic, fail all of them.
func TestExternalBatchThatDoesNotAnswerFails(t *testing.T) {
	t.Parallel()
	for want, answer := range map[string]func([]*handler.Message) []error{
		"the handler got 2 events and returned 1 errors": func([]*handler.Message) []error { return []error{nil} },
		"the handler got 2 events and returned 0 errors": func([]*handler.Message) []error { return nil },
		"handler panicked: no":                           func([]*handler.Message) []error { panic("no") },
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			h := newHouse(t)
			h.externalBatch(handler.Config{}, answer)
			h.offer("C", h.event("a", "1"), h.event("b", "2"))
			require.Len(t, h.called(), 1)
			for _, id := range []string{"a", "b"} {
				require.Equal(t, store.Failed, h.row("C", id).status)
				require.Contains(t, h.row("C", id).err, want)
			}
		})
	}
}

// Middleware that wraps the error leaves each event its own answer; one that returns another speaks for all.
func TestMiddlewareAroundAnExternalBatch(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		around func(error) error
		a, b   store.Status
	}{
		"it wraps":    {func(err error) error { return errors.Join(errors.New("seen"), err) }, store.Success, store.Failed},
		"it replaces": {func(error) error { return errNo }, store.Failed, store.Failed},
		"it swallows": {func(error) error { return nil }, store.Success, store.Success},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHouse(t)
			h.regs.Around = func(ctx context.Context, _ *handler.Consumer, _ []*handler.Message, run func(context.Context) error) error {
				return c.around(run(ctx))
			}
			h.externalBatch(handler.Config{}, func([]*handler.Message) []error { return []error{nil, errNo} })
			h.offer("C", h.event("a", "1"), h.event("b", "2"))
			require.Equal(t, c.a, h.row("C", "a").status)
			require.Equal(t, c.b, h.row("C", "b").status)
		})
	}
}

// If the results cannot be stored together, each is stored by itself.
func TestResultsOfAnExternalBatchAreStoredOneByOneIfTheyMust(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.externalBatch(handler.Config{}, allSucceed)
	h.exec("CREATE TRIGGER no_success BEFORE UPDATE ON bc_event_consume_log WHEN NEW.status = 'SUCCESS' AND NEW.event_id = 'b' " +
		"BEGIN SELECT RAISE(ABORT, 'no'); END")
	h.offer("C", h.event("a", "1"), h.event("b", "2"), h.event("c", "3"))
	require.Equal(t, 2, h.rows("C", store.Success))
	require.Equal(t, store.Failed, h.row("C", "b").status)
	require.Contains(t, h.log(), "the effect happened but its result could not be stored; it will happen again")
}
