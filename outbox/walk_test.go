package outbox_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

// RunOnce ends when nothing deliverable is left, however many events it must leave alone: here another instance has
// the first event of their aggregate in hand.
func TestRunOnceGetsPastWhatIsBlocked(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]string{
		"saved one after the other": "",
		"due at one moment":         "UPDATE bc_outbox_event SET next_retry_at = '2020-01-01 00:00:00.000000'",
		"without a time":            "UPDATE bc_outbox_event SET next_retry_at = NULL",
		"the last without a time":   "UPDATE bc_outbox_event SET next_retry_at = NULL WHERE aggregate_id = 'free'",
		"delayed":                   "UPDATE bc_outbox_event SET status = 'SCHEDULED', lock_version = 0, next_retry_at = '2020-01-01 00:00:00.000000'",
		"parked":                    "UPDATE bc_outbox_event SET status = 'SCHEDULED', lock_version = 1, next_retry_at = '2020-01-01 00:00:00.000000'",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testdb.Each(t, func(t *testing.T, db *bun.DB) {
				f := newFixture(t, db)
				f.registered("A")
				const blocked, free = 6000, 5 // a claim looks at 4,995
				for i := 0; i < blocked; i += 500 {
					f.save(numbered("busy", i, 500)...)
				}
				f.save(numbered("free", 0, free)...)
				if set != "" {
					f.exec(set)
				}
				f.exec("UPDATE bc_outbox_event SET status = 'DISPATCHING', locked_by = 'elsewhere', lock_version = 1, next_retry_at = '2100-01-01 00:00:00.000000' WHERE aggregate_id = 'busy' AND id = (SELECT first FROM (SELECT MIN(id) AS first FROM bc_outbox_event) AS x)")
				f.once()
				require.Equal(t, free, f.count("SELECT COUNT(*) FROM effect WHERE aggregate = 'free'"))
				require.Zero(t, f.count("SELECT COUNT(*) FROM effect WHERE aggregate = 'busy'"))
			})
		})
	}
}

// numbered are n events of one aggregate, from first on.
func numbered(aggregate string, first, n int) []bus.Event {
	events := make([]bus.Event, n)
	for i := range events {
		events[i] = orderPaid{OrderID: aggregate, Seq: first + i}
	}
	return events
}
