package ops_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/ops"
	"github.com/bluecone-go/bluecone/outbox"
)

// release is another release of the service on the same database, whose consumers register adds.
func (f *fixture) release(register func(b *bus.Bus)) *fixture {
	f.t.Helper()
	next := newFixture(f.t, f.db, ops.Config{})
	register(next.bus)
	return next
}

// findings are those of an order's story, by their rules.
func (f *fixture) findings(order string) map[string]ops.Finding {
	f.t.Helper()
	s, err := f.ops.Trace(f.t.Context(), "ORDER/"+order)
	require.NoError(f.t, err)
	by := make(map[string]ops.Finding)
	for _, found := range s.Findings {
		by[found.Rule] = found
	}
	return by
}

// announced is an instance that goes on with the consumers, but for their replays.
func (f *fixture) announced() {
	f.t.Helper()
	f.exec("UPDATE bc_consumer SET seen_at = " + f.now(0) + " WHERE name NOT LIKE '%@replay'")
	f.exec("INSERT INTO bc_instance (name, host, version, started_at, seen_at) VALUES ('i', 'h', 'v', " + f.now(0) + ", " + f.now(0) + ")")
}

// overviewSays waits until an overview says so, by the rule: what it answers is shared for a second.
func (f *fixture) overviewSays(rule, says string) {
	f.t.Helper()
	testdb.Eventually(f.t, func() bool {
		all, err := f.ops.Overview(f.t.Context())
		return err == nil && all.Health.Rule == rule && strings.HasPrefix(all.Health.Says, says)
	}, says)
}

func done[E bus.Event](context.Context, bun.Tx, bus.Message[E]) error { return nil }

// A replay that was asked for waits for ever when no release runs replays of the consumer any more. The diagnosis says so, and
// skipping it by the name that it gives ends it.
func TestDiagnosisOfAReplayThatNobodyRuns(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db, ops.Config{}).consumers()
		f.save(paid{OrderID: "1"})
		f.once()
		require.NoError(t, f.ops.Replay(t.Context(), op, paidID("1"), "Steady"))
		require.NotContains(t, f.findings("1"), ops.RuleReplay, "it is due")
		next := f.release(func(b *bus.Bus) {
			for _, name := range []string{"Steady", "Moody"} {
				bus.On(b.Consumer(name, bus.ConsumerConfig{}), done[paid])
			}
		})
		f.exec("UPDATE bc_consumer SET seen_at = " + f.now(-time.Hour))
		next.once()
		found := next.findings("1")
		require.Contains(t, found[ops.RuleReplay].Says, "A replay of order.paid of ORDER 1 waits for Steady, of which no instance runs replays")
		require.Contains(t, found[ops.RuleReplay].Remedy, "--consumer Steady@replay")
		require.NotContains(t, found, ops.RuleHealthy)
		require.Equal(t, "Steady@replay", found[ops.RuleReplay].Consumer)
		next.announced()
		next.overviewSays(ops.RuleReplay, "1 replay waits for Steady, of which no instance runs replays (any more).")
		require.NoError(t, next.ops.Skip(t.Context(), op, paidID("1"), "Steady@replay"))
		require.Contains(t, next.findings("1"), ops.RuleHealthy)
		require.Equal(t, outbox.StatusSent, next.event("1").Status)
	})
}

// A delivery waits for ever when no release of its consumer takes its event type any more.
func TestDiagnosisOfATypeThatIsGone(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db, ops.Config{}).consumers()
		f.save(paid{OrderID: "1", Note: "fail"})
		f.once()
		require.NotContains(t, f.findings("1"), ops.RuleTypeGone, "it is tried again")
		next := f.release(func(b *bus.Bus) {
			bus.On(b.Consumer("Steady", bus.ConsumerConfig{}), done[paid])
			bus.On(b.Consumer("Moody", bus.ConsumerConfig{}), done[noted])
		})
		next.once()
		require.NotContains(t, next.findings("1"), ops.RuleTypeGone, "the release before may still run")
		f.exec("UPDATE bc_consumer_type SET seen_at = " + f.now(-time.Hour) + " WHERE consumer_name = 'Moody' AND event_type = 'order.paid'")
		found := next.findings("1")
		require.Contains(t, found[ops.RuleTypeGone].Says, "order.paid of ORDER 1 waits for Moody, and no running release of it takes the type")
		require.Contains(t, found[ops.RuleTypeGone].Remedy, "bluecone events skip "+paidID("1")+" --consumer Moody")
		next.announced()
		const says = "1 delivery of order.paid waits for Moody, and no running release of it takes the type."
		next.overviewSays(ops.RuleTypeGone, says)
		require.NoError(t, next.ops.Retire(t.Context(), op, "Moody", "order.paid"))
		next.overviewSays(ops.RuleTypeGone, says)
		require.Contains(t, next.findings("1"), ops.RuleTypeGone, "what waits already is not ended by that")
		require.NoError(t, next.ops.Skip(t.Context(), op, paidID("1"), "Moody"))
		require.Contains(t, next.findings("1"), ops.RuleHealthy)
	})
}

// An open backfill holds later events of its consumer, and has not given the past: the diagnosis says what it waits for.
func TestDiagnosisOfAPastThatNobodyGives(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f, _ := afterwards(t, db, 1)
		_, err := f.ops.StartBulk(t.Context(), op, ops.NewBulk{ID: "past", Action: ops.ActionBackfill, Consumer: "Late"})
		require.NoError(t, err)
		past := func() ops.Finding { return f.findings("1")[ops.RulePast] }
		require.Equal(t, ops.Info, past().Level)
		require.Equal(t, "Late has not had order.noted of ORDER 1: an open backfill has not come to it. "+
			"Later events of the aggregate wait for it.", past().Says)
		f.exec("UPDATE bc_bulk_operation SET updated_at = " + f.now(-time.Hour))
		require.Equal(t, ops.Warn, past().Level)
		require.Contains(t, past().Says, "an open backfill has not come to it, and has not moved since ")
		require.Contains(t, past().Remedy, "ops.Run")
		f.exec("UPDATE bc_bulk_operation SET action = 'start'")
		require.Contains(t, past().Remedy, "StartFrom")
		f.announced()
		f.overviewSays(ops.RulePast, "A backfill of Late has not moved since ")
		f.exec("UPDATE bc_bulk_operation SET action = 'backfill', state = 'FAILED'")
		f.overviewSays(ops.RulePast, "A backfill of Late is FAILED, and later events of its aggregates wait for it.")
		require.Equal(t, ops.Bad, past().Level)
		require.Contains(t, past().Says, "an open backfill, which is FAILED, has not come to it")
		require.Contains(t, past().Remedy, "bluecone bulk resume")
		require.NotContains(t, f.findings("1"), ops.RuleHealthy)

		f.exec("UPDATE bc_bulk_operation SET state = 'RUNNING'")
		did, err := f.ops.RunBulkOnce(t.Context())
		require.NoError(t, err)
		require.True(t, did)
		f.once()
		require.Contains(t, f.findings("1"), ops.RuleHealthy)
	})
}

// What a backfill is not about, it does not give: the diagnosis names its past only if later events wait for it all the same.
func TestDiagnosisOfABackfillOfOtherEvents(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f, _ := afterwards(t, db, 1)
		_, err := f.ops.StartBulk(t.Context(), op, ops.NewBulk{Action: ops.ActionBackfill, Consumer: "Late", Query: ops.Query{AggregateID: "2"}})
		require.NoError(t, err)
		require.Contains(t, f.findings("2"), ops.RulePast)
		require.NotContains(t, f.findings("1"), ops.RulePast)
		f.save(noted{OrderID: "1", Note: "later"})
		f.once()
		require.Contains(t, f.findings("1"), ops.RulePast)
	})
}
