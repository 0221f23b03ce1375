package claim

import (
	"time"

	"github.com/bluecone-go/bluecone/internal/eventrow"
)

// Fairness decides when a publisher that works off the backlog of some tenants looks at the newest events as well, and takes those
// of other tenants out of turn. The zero value works.
type Fairness struct{ looked time.Time }

const (
	fairEvery = 250 * time.Millisecond
	fairBack  = 1500 * time.Millisecond // how new the events are that are looked at, at least
	fairShare = 10                      // a tenant with a tenth of a claim has its turn
)

// Look reports whether to look now, and at events of what age at most: nothing since the last look is missed, however long
// ago that was. A look counts as made.
func (f *Fairness) Look(now time.Time) (back time.Duration, isTime bool) {
	since := now.Sub(f.looked)
	if since < fairEvery {
		return 0, false
	}
	back = fairBack
	if !f.looked.IsZero() {
		back += 2 * since
	}
	f.looked = now
	return back, true
}

// BusyTenants are those that have a good part of a claim.
func BusyTenants(rows []eventrow.Row) []int64 {
	counts := make(map[int64]int)
	for _, r := range rows {
		counts[r.TenantID]++
	}
	var busy []int64
	for tenant, n := range counts {
		if n*fairShare >= len(rows) {
			busy = append(busy, tenant)
		}
	}
	return busy
}
