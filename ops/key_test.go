package ops_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/ops"
	"github.com/bluecone-go/bluecone/outbox"
)

// An event is found by its idempotency key whichever tenant it belongs to, and however much was saved since, also
// in the archive.
func TestKeyIsFoundInEveryTenant(t *testing.T) {
	t.Parallel()
	const tenants, later = 60, 1200
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db, ops.Config{})
		var same, more []bus.Event
		for i := range tenants {
			same = append(same, outbox.With(paid{OrderID: "7"}, outbox.Tenant(int64(i), 0)))
		}
		f.save(append(same, outbox.With(paid{OrderID: "8"}, outbox.Tenant(1, 0)))...)
		for i := range later {
			more = append(more, outbox.With(noted{OrderID: fmt.Sprint(i)}, outbox.Tenant(int64(1000+i%30), 0)))
		}
		f.save(more...)
		requireKey := func(archived int) {
			t.Helper()
			o, err := ops.New(db, f.ob, ops.Config{}) // a new one shares no answer
			require.NoError(t, err)
			p, err := o.Events(t.Context(), ops.Query{IdempotencyKey: "order:7:paid"})
			require.NoError(t, err)
			found, moved := make(map[int64]bool), 0
			for _, e := range p.Rows {
				require.Equal(t, "7", e.AggregateID)
				require.Equal(t, "order:7:paid", e.IdempotencyKey)
				found[e.TenantID] = true
				if e.Archived {
					moved++
				}
			}
			require.Len(t, found, tenants)
			require.Len(t, p.Rows, tenants)
			require.Equal(t, archived, moved)
			p, err = o.Events(t.Context(), ops.Query{IdempotencyKey: "order:7:paid", TenantID: tenants - 1})
			require.NoError(t, err)
			require.Len(t, p.Rows, 1)
			n, err := o.Count(t.Context(), ops.Query{IdempotencyKey: "order:7:paid"})
			require.NoError(t, err)
			require.Equal(t, ops.Count{Count: tenants}, n)
		}
		requireKey(0)
		require.Equal(t, tenants+1, f.count("SELECT COUNT(*) FROM bc_outbox_event WHERE event_key IS NOT NULL"), "others have none")
		f.exec("UPDATE bc_outbox_event SET created_at = " + f.now(-time.Hour))
		f.exec("UPDATE bc_outbox_event SET status = 'SENT', sent_at = " + f.now(-time.Hour) + " WHERE tenant_id BETWEEN 40 AND 49")
		r, err := outbox.NewRetention(f.ob, outbox.RetentionConfig{Keep: time.Minute, Archive: true})
		require.NoError(t, err)
		_, err = r.RunOnce(t.Context())
		require.NoError(t, err)
		requireKey(10)
	})
}
