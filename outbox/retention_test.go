package outbox_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
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
			past := map[string]string{"mysql": "UTC_TIMESTAMP(6) - INTERVAL 8 DAY", "pg": "now() - interval '8 days'", "sqlite": "(strftime('%Y-%m-%d %H:%M:%f', 'now', '-8 days') || '000')"}[db.Dialect().Name().String()]
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
		long := map[string]string{"mysql": "UTC_TIMESTAMP(6) - INTERVAL 366 DAY", "pg": "now() - interval '366 days'", "sqlite": "(strftime('%Y-%m-%d %H:%M:%f', 'now', '-366 days') || '000')"}[db.Dialect().Name().String()]
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
	_, err := outbox.NewRetention(f.ob, outbox.RetentionConfig{Keep: time.Second, KeepAudit: time.Hour, Batch: -1, Cron: "TZ=0"})
	for _, field := range []string{"Keep", "KeepAudit", "Batch", "Cron"} {
		require.ErrorContains(t, err, "outbox.RetentionConfig."+field)
	}
	_, err = outbox.NewRetention(f.ob, outbox.RetentionConfig{Keep: -1})
	require.NoError(t, err)
}
