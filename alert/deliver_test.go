package alert_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/alert"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

// A sink that is down, hangs or panics keeps nothing from the others, and gets everything, in order,
// when it is back.
func TestASinkThatIsDownHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		var well, down inbox
		down.fail(errDown)
		hang := alert.SinkFunc(func(ctx context.Context, _ alert.Notice) error { <-ctx.Done(); return ctx.Err() })
		wild := alert.SinkFunc(func(context.Context, alert.Notice) error { panic("wild") })
		a := newAlerter(t, db, alert.Config{Routes: to(&down, hang, wild, &well), SendTimeout: 250 * time.Millisecond})
		for _, c := range []string{"A", "B", "C"} {
			delivery(t, db, "DEAD", c, "order.paid", 10, time.Second)
		}
		require.Equal(t, alert.Report{Found: 3, Sent: 3, Failed: 3}, look(t, a))
		require.Len(t, well.got(), 3)
		require.Zero(t, look(t, a).Sent)
		sqlExec(t, db, "DELETE FROM bc_event_consume_log")
		pass(t, db, 2*time.Minute)
		look(t, a)
		require.Len(t, well.got(), 6)
		require.Empty(t, down.got())
		var said string
		require.NoError(t, db.QueryRowContext(t.Context(), "SELECT last_error FROM bc_alert_message WHERE sink = 'sink1' AND attempts > 0 "+
			"ORDER BY id LIMIT 1").Scan(&said))
		require.Equal(t, "down", said)

		down.fail(nil)
		for range 2 { // its messages fall due one after the other
			pass(t, db, 20*time.Minute)
			look(t, a)
		}
		kinds := make(map[string][]alert.Kind)
		for _, n := range down.got() {
			kinds[n.Consumer] = append(kinds[n.Consumer], n.Kind)
		}
		for _, c := range []string{"A", "B", "C"} {
			require.Equal(t, []alert.Kind{alert.Firing, alert.Resolved}, kinds[c], c)
		}
	})
}

// A sink that has been away for a day hears of an alert once, not once for every reminder.
func TestASinkThatWasAwayGetsNoHeapOfReminders(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		var down inbox
		down.fail(errDown)
		a := newAlerter(t, db, alert.Config{Routes: to(&down)})
		delivery(t, db, "DEAD", "A", "order.paid", 10, time.Second)
		for range 4 {
			look(t, a)
			pass(t, db, 24*time.Hour)
		}
		down.fail(nil)
		look(t, a)
		look(t, a)
		require.Equal(t, []string{"FIRING CRITICAL dead"}, down.told())
	})
}

// A process that ends between the state and the message has told nobody: the next one does.
func TestAMessageThatWasNotSentIsSentByTheNext(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		var lost, got inbox
		delivery(t, db, "DEAD", "A", "order.paid", 10, time.Second)
		require.NoError(t, alert.Observe(t.Context(), newAlerter(t, db, alert.Config{Routes: to(&lost)})))
		require.Empty(t, lost.got())
		sqlExec(t, db, "DELETE FROM bc_event_consume_log") // even if it is over by then
		look(t, newAlerter(t, db, alert.Config{Routes: to(&got)}))
		require.Equal(t, []string{"FIRING CRITICAL dead"}, got.told())
	})
}

// The sink learns where the message comes from and where to look.
func TestAMessageSaysWhereToLook(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		var got inbox
		a := newAlerter(t, db, alert.Config{
			Routes: to(&got), Service: "shop", Environment: "staging", Runbook: "https://wiki/run",
			Link: func(n alert.Notice) string { return "https://ops/dead?consumer=" + n.Consumer },
		})
		delivery(t, db, "DEAD", "A", "order.paid", 10, time.Hour)
		look(t, a)
		n := got.got()[0]
		require.Equal(t, "shop staging A order.paid https://ops/dead?consumer=A https://wiki/run#dead",
			n.Service+" "+n.Environment+" "+n.Consumer+" "+n.EventType+" "+n.Link+" "+n.Runbook)
		require.WithinDuration(t, time.Now().Add(-time.Hour), n.Since, 5*time.Minute, "since it is DEAD, not since it was seen")
		require.Equal(t, int64(1), n.Count)
	})
}
