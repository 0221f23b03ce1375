package store_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/store"
)

// Deliveries that cannot run now wait in the log, each in its own way, whether they are of few consumers or of many. Those that
// have a row already are left alone.
func TestDeferInsertsWaitingRows(t *testing.T) {
	t.Parallel()
	eachLog(t, func(f logFixture) {
		for _, consumers := range []int{1, 9} { // one statement for each consumer; one for all
			prefix := fmt.Sprint(consumers)
			plain, suspect, left, both, there := f.event(prefix+"plain", "1"), f.event(prefix+"suspect", "2"), f.event(prefix+"left", "3"),
				f.event(prefix+"both", "4"), f.event(prefix+"there", "5")
			suspect.Suspect, left.Left, both.Suspect, both.Left = true, true, true, true
			require.NoError(f.t, f.log.Defer(f.t.Context(), f.db, []store.Delivery{there}, 0))
			f.set(there.EventID, "status = 'DEAD', attempts = 4")
			var ds []store.Delivery
			for i := range consumers {
				for _, d := range []store.Delivery{plain, suspect, left, both, there} {
					if d.Consumer = fmt.Sprint("C", i); i == 0 {
						d.Consumer = "C"
					}
					ds = append(ds, d)
				}
			}
			require.NoError(f.t, f.log.Defer(f.t.Context(), f.db, ds, time.Hour))
			for _, d := range ds[:len(ds)-5] {
				if d.EventID != there.EventID {
					require.Equal(f.t, store.Pending, f.rowOf(d.Consumer, d.EventID).status)
				}
			}
			require.Equal(f.t, deliveryRow{status: store.Pending, due: "later"}, f.row(plain.EventID))
			require.Equal(f.t, deliveryRow{status: store.Pending, due: "later", started: 1}, f.row(suspect.EventID))
			require.Equal(f.t, deliveryRow{status: store.Pending, due: "never"}, f.row(left.EventID))
			require.Equal(f.t, deliveryRow{status: store.Pending, due: "never", started: 1}, f.row(both.EventID))
			require.Equal(f.t, deliveryRow{status: store.Dead, attempts: 4, due: "now"}, f.row(there.EventID))
		}
		require.NoError(f.t, f.log.Defer(f.t.Context(), f.db, nil, 0))
		require.Equal(f.t, 5+5*9, f.rows("bc_event_consume_log"))
	})
}
