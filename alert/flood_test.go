package alert_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/alert"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

// Three thousand event types that anybody wrote do not stand before the one thing that is critical, and are few messages.
func TestAFloodDoesNotHideWhatIsCritical(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		var got inbox
		a := newAlerter(t, db, alert.Config{Routes: to(&got)})
		var values []string
		for i := range 3000 {
			values = append(values, fmt.Sprintf("('EVIL', '%d', 'evil.t%04d', 'evil-%d', '{}', 'NEW', %s)", i, i, i, ago(t, db, time.Hour)))
		}
		sqlExec(t, db, "INSERT INTO bc_outbox_event (aggregate_type, aggregate_id, event_type, event_id, event_payload, status, created_at) "+
			"VALUES "+strings.Join(values, ", "))
		look(t, a)
		before := len(got.told())
		require.LessOrEqual(t, before, 10)
		delivery(t, db, "DEAD", "A", "order.paid", 10, time.Second) // after the others had been seen
		look(t, a)
		require.Equal(t, "FIRING CRITICAL dead", got.told()[before], "the next message that is sent")
		for range 5 {
			look(t, a)
		}
		var said []string
		for _, n := range got.got() {
			if n.Rule == alert.RuleLate {
				said = append(said, n.Says)
			}
		}
		require.Len(t, said, 21)
		require.Contains(t, strings.Join(said, "\n"), "and 2980 more")
	})
}
