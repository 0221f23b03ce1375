package claim_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/engine/claim"
	"github.com/bluecone-go/bluecone/internal/eventrow"
)

// In a backlog claims are larger, but never smaller than what was asked for.
func TestClaimsAreLargerInABacklog(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ configured, backlog int }{{1, 5}, {100, 500}, {200, 500}, {1000, 1000}} {
		require.Equal(t, c.configured, claim.PageSize(c.configured, false))
		require.Equal(t, c.backlog, claim.PageSize(c.configured, true))
	}
	require.Equal(t, 1, claim.WorthwhileRoom(0))
	require.Equal(t, 51, claim.WorthwhileRoom(100))
}

// A publisher looks for other tenants four times a second, at what is new enough, and misses nothing since the last look.
func TestFairnessLooksNowAndThen(t *testing.T) {
	t.Parallel()
	var f claim.Fairness
	now := noon
	for _, c := range []struct {
		after, back time.Duration
		isTime      bool
	}{
		{0, 1500 * time.Millisecond, true},
		{249 * time.Millisecond, 0, false},
		{time.Millisecond, 2 * time.Second, true},
		{time.Minute, 121500 * time.Millisecond, true},
		{0, 0, false},
	} {
		now = now.Add(c.after)
		back, isTime := f.Look(now)
		require.Equal(t, c.isTime, isTime, "%+v", c)
		require.Equal(t, c.back, back, "%+v", c)
	}
}

// Tenants that have a tenth of a claim are busy.
func TestTenantsWithATenthOfAClaimAreBusy(t *testing.T) {
	t.Parallel()
	var rows []eventrow.Row
	for tenant, n := range map[int64]int{0: 80, 1: 10, 2: 9, 3: 1} {
		rows = append(rows, slices.Repeat([]eventrow.Row{{TenantID: tenant}}, n)...)
	}
	require.ElementsMatch(t, []int64{0, 1}, claim.BusyTenants(rows))
	require.Empty(t, claim.BusyTenants(nil))
}

// What is handed over is taken once. Too much of it is a backlog: it is claimed instead.
func TestWhatIsHandedOverIsTakenOnce(t *testing.T) {
	t.Parallel()
	h := claim.NewHandover()
	ids, ok := h.Take()
	require.True(t, ok)
	require.Empty(t, ids)
	h.Put([]string{"a"})
	h.Put([]string{"b", "c"})
	<-h.Calls()
	require.Empty(t, h.Calls(), "one call for all")
	ids, ok = h.Take()
	require.True(t, ok)
	require.Equal(t, []string{"a", "b", "c"}, ids)

	h.Put(make([]string, claim.MostHandedOver))
	_, ok = h.Take()
	require.True(t, ok)
	h.Put(make([]string, claim.MostHandedOver))
	h.Put([]string{"one too many"})
	h.Put([]string{"another"})
	ids, ok = h.Take()
	require.False(t, ok)
	require.Empty(t, ids)
	h.Put([]string{"a"})
	_, ok = h.Take()
	require.True(t, ok)
}
