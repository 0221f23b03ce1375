package settle

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/store"
)

type states = map[string]store.Status

// The status of an event follows from the deliveries that it needs, whatever their order.
func TestStatusOfAnEventFromItsDeliveries(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		states states
		needed []string
		want   Status
	}{
		"nobody takes it":                         {nil, nil, Sent},
		"done":                                    {states{"A": store.Success}, []string{"A"}, Sent},
		"skipped is done":                         {states{"A": store.Skipped, "B": store.Success}, []string{"A", "B"}, Sent},
		"one waits":                               {states{"A": store.Success, "B": store.Pending}, []string{"A", "B"}, Failed},
		"one has failed":                          {states{"A": store.Failed}, []string{"A"}, Failed},
		"one runs":                                {states{"A": store.Processing}, []string{"A"}, Failed},
		"one is dead":                             {states{"A": store.Dead, "B": store.Success}, []string{"A", "B"}, Dead},
		"one is dead, another waits":              {states{"A": store.Dead, "B": store.Pending}, []string{"A", "B"}, Failed},
		"one is missing":                          {states{"A": store.Success}, []string{"A", "B"}, New},
		"one is missing, another waits":           {states{"A": store.Failed}, []string{"A", "B"}, New},
		"one is missing, another is dead":         {states{"A": store.Dead}, []string{"A", "B"}, New},
		"all are missing":                         {nil, []string{"A"}, New},
		"one that nobody needs any more waits":    {states{"A": store.Success, "Gone": store.Pending}, []string{"A"}, Failed},
		"one that nobody needs any more was done": {states{"A": store.Success, "Gone": store.Success}, []string{"A"}, Sent},
	} {
		require.Equal(t, c.want, count(c.states, c.needed).Status(), name)
	}
}

// An event that was settled before has the status of its deliveries; without any it stays as it is, unless it would wait for
// nobody.
func TestRolledUpStatus(t *testing.T) {
	t.Parallel()
	for _, before := range []Status{Sent, Failed, Dead} {
		require.Equal(t, Sent, rolledUp(before, store.Summary{Rows: 2}))
		require.Equal(t, Failed, rolledUp(before, store.Summary{Rows: 2, Waiting: 1}))
		require.Equal(t, Dead, rolledUp(before, store.Summary{Rows: 2, Dead: 1}))
		require.Equal(t, Failed, rolledUp(before, store.Summary{Rows: 2, Waiting: 1, Dead: 1}))
	}
	require.Equal(t, New, rolledUp(Failed, store.Summary{}))
	require.Equal(t, Dead, rolledUp(Dead, store.Summary{}))
	require.Equal(t, Sent, rolledUp(Sent, store.Summary{}))
}

// An event of which a delivery is missing is claimed again: after a second, or at once by another instance if this one drains.
func TestEndingOfALease(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		states     states
		needed     []string
		isDraining bool
		want       store.Ending
	}{
		"sent":               {states{"A": store.Success}, []string{"A"}, false, store.Ending{Status: "SENT"}},
		"missing":            {nil, []string{"A"}, false, store.Ending{Status: "SCHEDULED", Delay: time.Second}},
		"missing, draining":  {nil, []string{"A"}, true, store.Ending{Status: "NEW"}},
		"failed and missing": {states{"A": store.Failed}, []string{"A", "B"}, false, store.Ending{Status: "SCHEDULED", Delay: time.Second}},
		"waits":              {states{"A": store.Pending}, []string{"A"}, false, store.Ending{Status: "FAILED"}},
		"waits, draining":    {states{"A": store.Pending}, []string{"A"}, true, store.Ending{Status: "FAILED"}},
		"has failed":         {states{"A": store.Failed}, []string{"A"}, false, store.Ending{Status: "FAILED", Failed: true}},
		"dead":               {states{"A": store.Dead}, []string{"A"}, false, store.Ending{Status: "DEAD", Failed: true}},
		"dead, and another waits": {
			states{"A": store.Dead, "B": store.Pending}, []string{"A", "B"}, false, store.Ending{Status: "FAILED", Failed: true},
		},
	} {
		require.Equal(t, c.want, endingOf(c.states, c.needed, c.isDraining), name)
	}
}
