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

func TestRetentionConfigNamesEveryMistake(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testdb.Open(t, "sqlite"))
	_, err := outbox.NewRetention(f.ob, outbox.RetentionConfig{Keep: time.Second, Batch: -1, Cron: "TZ=0"})
	for _, field := range []string{"Keep", "Batch", "Cron"} {
		require.ErrorContains(t, err, "outbox.RetentionConfig."+field)
	}
	_, err = outbox.NewRetention(f.ob, outbox.RetentionConfig{Keep: -1})
	require.NoError(t, err)
}
