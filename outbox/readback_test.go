package outbox_test

import (
	"context"
	"database/sql/driver"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/inject"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

// before calls do when the first query that has the text is sent.
type before struct {
	text string
	do   func()
	done atomic.Bool
}

func (h *before) BeforeQuery(ctx context.Context, ev *bun.QueryEvent) context.Context {
	if strings.Contains(ev.Query, h.text) && h.done.CompareAndSwap(false, true) {
		h.do()
	}
	return ctx
}

func (*before) AfterQuery(context.Context, *bun.QueryEvent) {}

// A batch whose COMMIT has failed is not committed because one of its events is done by now: another instance may have
// taken that one over. The others would be lost, and what is behind them would overtake them.
func TestUnknownCommitOfABatchIsReadBackForEveryEvent(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		f.counting("A", bus.ConsumerConfig{})
		var armed, hits atomic.Bool
		f.inject(inject.Faults{BeforeCommit: func(_ string, ids []string) error {
			if len(ids) < 2 || !hits.CompareAndSwap(false, true) {
				return nil
			}
			armed.Store(true)
			return driver.ErrBadConn
		}})
		taken := &before{text: "COUNT(CASE WHEN status = 'SUCCESS'"}
		taken.do = func() {
			if !armed.Load() {
				taken.done.Store(false)
				return
			}
			f.exec("INSERT INTO effect (consumer, event_id, aggregate, seq) SELECT 'A', event_id, aggregate_id, 1 FROM bc_outbox_event " +
				"WHERE aggregate_id = 'first'")
			f.exec("INSERT INTO bc_event_consume_log (consumer_name, event_id, event_type, status, outbox_id, aggregate_type, aggregate_id) " +
				"SELECT 'A', event_id, event_type, 'SUCCESS', id, aggregate_type, aggregate_id FROM bc_outbox_event WHERE aggregate_id = 'first'")
		}
		db.AddQueryHook(taken) //nolint:staticcheck // the engine's own db must show its queries
		f.save(orderPaid{OrderID: "first", Seq: 1}, orderPaid{OrderID: "second", Seq: 1})
		f.once()
		require.True(t, taken.done.Load(), "the batch was read back")
		require.Equal(t, 2, f.count("SELECT COUNT(*) FROM effect"), "the second event is lost")
		require.Equal(t, 2, f.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE status = 'SUCCESS'"))
	})
}
