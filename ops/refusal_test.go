package ops_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/ops"
)

// A refusal names what was meant, and says what is so; errors.Is still tells its kind. What does not exist at all is told
// apart from what exists in a state that does not allow the action.
func TestARefusalSaysWhatIsSo(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db, ops.Config{}).consumers()
		f.save(paid{OrderID: "1"})
		f.once()
		id, ctx := paidID("1"), t.Context()
		_, noEvent := f.ops.Event(ctx, "nope")
		_, _, noJob := f.ops.RunJob(ctx, op, "nope")
		for _, c := range []struct {
			err     error
			says    string
			unknown bool // there is no such thing at all
		}{
			{noEvent, `there is no event "nope"`, true},
			{f.ops.Retry(ctx, op, "nope"), `ops: retry "nope": there is no event "nope"`, true},
			{f.ops.Skip(ctx, op, "nope", "Moody"), `ops: skip "nope": there is no event "nope"`, true},
			{f.ops.Discard(ctx, op, "nope"), `there is no event "nope"`, true},
			{f.ops.Retry(ctx, op, id), "ops: retry \"" + id + "\": nothing to retry: no delivery of the event is DEAD or FAILED", false},
			{f.ops.Retry(ctx, op, id, "Moody"), "nothing to retry: no delivery of the event to Moody is DEAD, FAILED or PENDING", false},
			{f.ops.Reopen(ctx, op, id, "Moody"), "ops: reopen \"" + id + "\": nothing to reopen: no delivery of the event to Moody is", false},
			{f.ops.Skip(ctx, op, id, "Moody"), "nothing to skip: no delivery of the event to Moody is DEAD, FAILED or PENDING", false},
			{f.ops.Discard(ctx, op, id), "nothing to discard: no delivery of the event is DEAD, FAILED or PENDING", false},
			{f.ops.Backfill(ctx, op, id, "Moody"), "Moody has had the event", false},
			{f.ops.Replay(ctx, op, id, "Nope"), `no instance has ever registered a consumer "Nope"`, true},
			{f.ops.Pause(ctx, op, "Nope", time.Hour), `no instance has ever registered a consumer "Nope"`, true},
			{f.ops.Retire(ctx, op, "Nope"), `no instance has ever registered a consumer "Nope"`, true},
			{f.ops.Retire(ctx, op, "Moody", "order.lost"), "the consumer does not take order.lost", false},
			{noJob, `no instance has ever had a job "nope"`, true},
			{f.ops.CancelBulk(ctx, op, "nope"), `there is no bulk operation "nope"`, true},
			{f.ops.ResumeBulk(ctx, op, "nope"), `there is no bulk operation "nope"`, true},
		} {
			require.ErrorIs(t, c.err, ops.ErrNotFound, c.says)
			require.ErrorContains(t, c.err, c.says)
			require.NotContains(t, c.err.Error(), ops.ErrNotFound.Error())
			if c.unknown {
				require.ErrorIs(t, c.err, ops.ErrUnknown, c.says)
			} else {
				require.NotErrorIs(t, c.err, ops.ErrUnknown, c.says)
			}
		}
		require.ErrorIs(t, f.ops.Replay(ctx, op, id, "Moody"), ops.ErrNotReplayable)
		require.Empty(t, f.actions(id), "what was refused leaves nothing in the audit log")
	})
}

// To resume a consumer that is not paused changes nothing, and leaves nothing in the audit log.
func TestResumeOfAConsumerThatRunsLeavesNothing(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db, ops.Config{}).consumers()
		f.once()
		require.NoError(t, f.ops.Resume(t.Context(), op, "Steady"))
		require.Empty(t, f.actions("Steady"))
		require.NoError(t, f.ops.Pause(t.Context(), op, "Steady", 0))
		require.NoError(t, f.ops.Resume(t.Context(), op, "Steady"))
		require.NoError(t, f.ops.Resume(t.Context(), op, "Steady"))
		require.Equal(t, []string{"pause", "resume"}, f.actions("Steady"))
	})
}

func TestNewSaysWhichIsNil(t *testing.T) {
	t.Parallel()
	_, err := ops.New(nil, nil, ops.Config{})
	require.ErrorContains(t, err, "db is nil")
	require.ErrorContains(t, err, "the outbox is nil")
	_, err = ops.New(&bun.DB{}, nil, ops.Config{})
	require.NotContains(t, err.Error(), "db is nil")
	require.Equal(t, 1, strings.Count(err.Error(), "is nil"))
}

func TestPublishOfATypeSaysWhichTypesThereAre(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db, ops.Config{})
		_, err := f.ops.Sample("order.lost")
		require.ErrorContains(t, err, "ops.Config.Publishable has order.noted, order.paid")
		none, err := ops.New(db, f.ob, ops.Config{})
		require.NoError(t, err)
		_, err = none.Sample("order.lost")
		require.ErrorContains(t, err, "ops.Config.Publishable has none")
	})
}
