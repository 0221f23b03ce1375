package outbox_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

func TestRetentionRemovesOnlyOldDeliveredEvents(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		for _, archive := range []bool{false, true} {
			f := newFixture(t, db)
			f.effects()
			bus.On(f.bus.Consumer("A", bus.ConsumerConfig{}), func(_ context.Context, _ bun.Tx, m bus.Message[orderPaid]) error {
				if m.Payload.Seq == 13 {
					return bus.Permanent(errHandler)
				}
				return nil
			})
			f.save(orderPaid{OrderID: "1"}, orderPaid{OrderID: "2", Seq: 13}, orderPaid{OrderID: "3"})
			f.once()
			past := f.daysBack(8)
			f.exec("UPDATE bc_outbox_event SET created_at = " + past + ", sent_at = CASE WHEN status = 'SENT' THEN " + past + " END")
			f.save(orderPaid{OrderID: "4"})
			f.once()
			r, err := outbox.NewRetention(f.ob, outbox.RetentionConfig{Archive: archive, Batch: 1})
			require.NoError(t, err)
			removed, err := r.RunOnce(context.Background())
			require.NoError(t, err)
			require.EqualValues(t, 2, removed)
			require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 1, outbox.StatusDead: 1}, f.statuses())
			require.Equal(t, 2, f.count("SELECT COUNT(*) FROM bc_event_consume_log"))
			want := 0
			if archive {
				want = 2
			}
			require.Equal(t, want, f.count("SELECT COUNT(*) FROM bc_outbox_event_archive"))
			require.Equal(t, want, f.count("SELECT COUNT(*) FROM bc_event_consume_log_archive"))
			f.exec("DELETE FROM bc_outbox_event")
			f.exec("DELETE FROM bc_event_consume_log")
		}
	})
}

// The audit log loses what is older than it is to be kept, batch by batch, also where events are kept for ever.
func TestRetentionOfTheAuditLog(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		long := map[string]string{
			"mysql": "UTC_TIMESTAMP(6) - INTERVAL 366 DAY", "pg": "now() - interval '366 days'",
			"sqlite": "(strftime('%Y-%m-%d %H:%M:%f', 'now', '-366 days') || '000')",
		}[db.Dialect().Name().String()]
		for range 3 {
			f.exec("INSERT INTO bc_audit_log (actor, action, target, reason, created_at) VALUES ('anna', 'retry', 'old', 'r', " + long + ")")
		}
		f.exec("INSERT INTO bc_audit_log (actor, action, target, reason) VALUES ('anna', 'retry', 'new', 'r')")
		for _, c := range []struct {
			keep       time.Duration
			gone, left int
		}{{-1, 0, 4}, {0, 3, 1}, {0, 0, 1}} {
			r, err := outbox.NewRetention(f.ob, outbox.RetentionConfig{Keep: -1, KeepAudit: c.keep, Batch: 2})
			require.NoError(t, err)
			counts, err := r.RunNow(t.Context())
			require.NoError(t, err)
			require.EqualValues(t, c.gone, counts["audit"])
			require.Equal(t, c.left, f.count("SELECT COUNT(*) FROM bc_audit_log"))
		}
		require.Equal(t, 1, f.count("SELECT COUNT(*) FROM bc_audit_log WHERE target = 'new'"))
	})
}

func TestRetentionConfigNamesEveryMistake(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testdb.Open(t, "sqlite"))
	_, err := outbox.NewRetention(f.ob, outbox.RetentionConfig{
		Keep: time.Second, KeepKeys: time.Hour, KeepAudit: time.Hour, Batch: -1, Cron: "TZ=0",
	})
	for _, field := range []string{"Keep", "KeepAudit", "Batch", "Cron"} {
		require.ErrorContains(t, err, "outbox.RetentionConfig."+field)
	}
	_, err = outbox.NewRetention(f.ob, outbox.RetentionConfig{KeepKeys: 7*24*time.Hour - 1})
	require.ErrorContains(t, err, "outbox.RetentionConfig.KeepKeys is 167h59m59.999999999s: it must not be shorter than Keep, which is "+
		"168h0m0s")
	_, err = outbox.NewRetention(f.ob, outbox.RetentionConfig{Keep: 100 * 24 * time.Hour})
	require.NoError(t, err, "keys are kept for as long by default")
	_, err = outbox.NewRetention(f.ob, outbox.RetentionConfig{Keep: -1})
	require.NoError(t, err)
}

func (f *fixture) daysBack(n int) string {
	return fmt.Sprintf(map[string]string{
		"mysql": "UTC_TIMESTAMP(6) - INTERVAL %d DAY", "pg": "now() - interval '%d days'",
		"sqlite": "(strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now', '-%d days') || '000')",
	}[f.db.Dialect().Name().String()], n)
}

// age makes everything eight days old.
func (f *fixture) age() {
	f.t.Helper()
	past := f.daysBack(8)
	f.exec("UPDATE bc_outbox_event SET created_at = " + past + ", sent_at = CASE WHEN status = 'SENT' THEN " + past + " END")
	f.exec("UPDATE bc_event_consume_log SET created_at = " + past)
}

func (f *fixture) retain(cfg outbox.RetentionConfig) map[string]int64 {
	f.t.Helper()
	r, err := outbox.NewRetention(f.ob, cfg)
	require.NoError(f.t, err)
	counts, err := r.RunNow(f.t.Context())
	require.NoError(f.t, err)
	return counts
}

// atStatement runs something before the nth statement of a pool, the first is 0, and waits a little for its end: it may have to
// wait for the transaction of the statement.
type atStatement struct {
	n, seen int
	run     func()
	ended   chan struct{}
}

func (b *atStatement) BeforeQuery(ctx context.Context, _ *bun.QueryEvent) context.Context {
	if b.seen++; b.seen == b.n+1 {
		go func() { defer close(b.ended); b.run() }()
		select {
		case <-b.ended:
		case <-time.After(300 * time.Millisecond):
		}
	}
	return ctx
}

func (*atStatement) AfterQuery(context.Context, *bun.QueryEvent) {}

// Whenever an operator replays an event while retention removes it: either there is nothing to replay, or the event keeps
// the log of those that have had it, and they do not get it again.
func TestReplayBesideRetention(t *testing.T) {
	t.Parallel()
	for _, name := range testdb.Dialects() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := testdb.DSN(t, name)
			f := newFixture(t, migrated(t, dsn))
			f.effects()
			f.counting("Again", bus.ConsumerConfig{Replayable: true})
			f.counting("Once", bus.ConsumerConfig{})
			answers := make(map[bool]int)
			for n, more := 0, true; more; n++ {
				f.save(keyedPaid{orderPaid{OrderID: fmt.Sprint("paid ", n)}})
				f.once()
				f.age()
				var id string
				require.NoError(t, f.db.QueryRowContext(t.Context(), "SELECT event_id FROM bc_outbox_event").Scan(&id))
				cleaner := f.another(dsn)
				var err error
				hook := &atStatement{n: n, ended: make(chan struct{}), run: func() { err = f.ob.Replay(context.Background(), ops, id, "Again") }}
				cleaner.db.AddQueryHook(hook) //nolint:staticcheck // the engine's own pool is the point
				cleaner.retain(outbox.RetentionConfig{})
				if more = hook.seen > n; !more {
					break
				}
				<-hook.ended
				require.NoError(t, cleaner.db.Close())
				if answers[err == nil]++; err != nil {
					require.ErrorIs(t, err, outbox.ErrNotFound)
					require.Empty(t, f.statuses(), "before statement %d", n)
					require.Empty(t, f.deliveries(), "before statement %d", n)
				} else {
					require.Equal(t, map[outbox.Status]int{outbox.StatusFailed: 1}, f.statuses(), "before statement %d", n)
					require.Equal(t, map[consumelog.Status]int{consumelog.Success: 2, consumelog.Pending: 1}, f.deliveries(), "before statement %d", n)
					f.once()
				}
				f.exec("DELETE FROM bc_outbox_event")
				f.exec("DELETE FROM bc_event_consume_log")
			}
			require.Equal(t, answers[true], f.count("SELECT COUNT(*) FROM effect WHERE consumer = 'Again'")-f.count("SELECT COUNT(*) "+
				"FROM effect WHERE consumer = 'Once'"))
			require.Zero(t, f.count("SELECT COUNT(*) FROM (SELECT event_id FROM effect WHERE consumer = 'Once' GROUP BY event_id "+
				"HAVING COUNT(*) > 1) AS twice"))
			require.NotZero(t, answers[true], "some came before")
			require.NotZero(t, answers[false], "some came too late")
		})
	}
}

// A keyed event that has gone is not saved again for as long as its key is kept, whichever release has saved it.
func TestKeysOutliveTheirEvents(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		for _, cfg := range []outbox.Config{{}, {DeleteSent: true}} {
			f := newFixtureOf(t, db, cfg)
			f.effects()
			f.counting("A", bus.ConsumerConfig{})
			paid, former := keyedPaid{orderPaid{OrderID: "7"}}, keyedPaid{orderPaid{OrderID: "of the former release"}}
			f.save(paid, former, orderPaid{OrderID: "unkeyed"})
			f.exec("DELETE FROM bc_event_key WHERE event_id = ?", former.id())
			repeat := func() int {
				f.save(paid)
				f.save(orderPaid{OrderID: "unkeyed"}, former)
				f.once()
				return f.count("SELECT COUNT(*) FROM effect WHERE aggregate <> 'unkeyed'")
			}
			require.Equal(t, 2, repeat())
			require.Equal(t, 2, repeat(), "each once")
			f.age()
			require.NotZero(t, f.retain(outbox.RetentionConfig{})["removed"])
			require.Empty(t, f.statuses())
			require.Empty(t, f.deliveries())
			require.Equal(t, 2, f.count("SELECT COUNT(*) FROM bc_event_key"))
			require.Equal(t, 2, repeat(), "the keys are known")
			f.exec("UPDATE bc_event_key SET removed_at = " + f.daysBack(89))
			require.Zero(t, f.retain(outbox.RetentionConfig{})["keys"])
			require.Equal(t, 2, repeat(), "for 90 days")
			f.exec("UPDATE bc_event_key SET removed_at = " + f.daysBack(91))
			require.Zero(t, f.retain(outbox.RetentionConfig{KeepKeys: -1})["keys"])
			require.EqualValues(t, 2, f.retain(outbox.RetentionConfig{Batch: 1})["keys"])
			require.Zero(t, f.count("SELECT COUNT(*) FROM bc_event_key"))
			require.Equal(t, 4, repeat(), "not for ever")
			for _, table := range []string{"effect", "bc_outbox_event", "bc_event_consume_log", "bc_event_key"} {
				f.exec("DELETE FROM " + table)
			}
		}
	})
}

// The deliveries of a deleted event stay while an event of that id is there again, saved by a release that knows no keys.
func TestRetentionLeavesTheLogOfWhatIsSavedAgain(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixtureOf(t, db, outbox.Config{DeleteSent: true})
		f.effects()
		f.counting("A", bus.ConsumerConfig{})
		paid := keyedPaid{orderPaid{OrderID: "7"}}
		f.save(paid)
		f.once()
		f.age()
		require.Empty(t, f.statuses())
		f.exec("INSERT INTO bc_outbox_event (aggregate_type, aggregate_id, event_type, event_id, event_payload) "+
			"VALUES ('ORDER', '7', 'order.paid', ?, '{}')", paid.id())
		require.Zero(t, f.retain(outbox.RetentionConfig{})["removed"])
		f.once()
		require.Equal(t, 1, f.count("SELECT COUNT(*) FROM effect"))
		require.EqualValues(t, 1, f.retain(outbox.RetentionConfig{})["removed"])
		require.Empty(t, f.deliveries())
	})
}
