package claim_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/engine/claim"
	"github.com/bluecone-go/bluecone/internal/store"
)

// A claim takes what there is room for, unless that is less than half of what it could be; in a backlog it takes more.
func TestPageSizeFollowsRoom(t *testing.T) {
	t.Parallel()
	p := claim.NewPlan(100)
	wide := claim.Room{InFlight: 1000, MostInFlight: 1000, Lanes: 400, MostLanes: 400}
	require.Equal(t, 100, p.PageSize(claim.New, wide))
	p.Claimed(claim.Result{Kind: claim.New, IsFull: true})
	require.Equal(t, 400, p.PageSize(claim.New, wide), "a backlog, but no more than the lanes take")
	require.Equal(t, 100, p.PageSize(claim.Expired, wide), "of another kind")
	p.Claimed(claim.Result{Kind: claim.Expired, IsFull: true})
	require.Equal(t, 400, p.PageSize(claim.New, wide), "a claim of another kind says nothing of NEW events")
	p.Claimed(claim.Result{Kind: claim.New})
	require.Equal(t, 100, p.PageSize(claim.New, wide), "it is over")
	require.Equal(t, 51, p.PageSize(claim.New, claim.Room{InFlight: 51, MostInFlight: 1000, Lanes: 400, MostLanes: 400}))
	require.Zero(t, p.PageSize(claim.New, claim.Room{InFlight: 50, MostInFlight: 1000, Lanes: 400, MostLanes: 400}), "not worth a claim")
	require.Equal(t, 4, p.PageSize(claim.New, claim.Room{InFlight: 1000, MostInFlight: 1000, Lanes: 4, MostLanes: 4}), "a narrow window")
}

// Events that were left alone for the sake of others are remembered until the plan is told to forget them.
func TestPlanRemembersWhatWasPassedOver(t *testing.T) {
	t.Parallel()
	p := claim.NewPlan(100)
	require.False(t, p.HasPassedOver())
	p.Claimed(claim.Result{Kind: claim.Scheduled, Seen: 1})
	p.Claimed(claim.Result{Kind: claim.New})
	require.True(t, p.HasPassedOver())
	p.ForgetPassedOver()
	require.False(t, p.HasPassedOver())
}

// The database is asked only for kinds that the plan does not know to be due, and what it answers has its turn. Deliveries for
// consumers of other instances are left to these.
func TestPlanAsksForWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	p, now := claim.NewPlan(100), time.Unix(1000, 0)
	all := store.DueQuestion{New: true, Scheduled: true, Expired: true, Deliveries: true, Left: []string{"A"}}
	require.Equal(t, all, p.Question([]string{"A"}))
	p.Answered(now, now, store.DueAnswer{New: true, Expired: true, Consumers: []string{"B"}}, false)
	require.Equal(t, claim.Of(claim.New, claim.Expired), p.Due())
	require.Empty(t, p.Consumers())
	require.Equal(t, store.DueQuestion{Scheduled: true, Deliveries: true}, p.Question(nil))
	p.Answered(now, now, store.DueAnswer{Consumers: []string{"A"}}, true)
	require.Equal(t, []string{"A"}, p.Consumers())
	seen := make(map[claim.Kind]bool)
	for {
		kind, ok := p.NextOf(claim.Pages{claim.New: 1})
		if !ok {
			break
		}
		seen[kind] = true
		p.Taken(kind, false)
	}
	require.Equal(t, map[claim.Kind]bool{claim.New: true, claim.Deliveries: true}, seen, "for expired events there is no room")
	require.Equal(t, claim.Of(claim.Expired), p.Due())
}

// An alarm that is set rings once, after the time for which it was set first, and can be set again when it was heard.
func TestAlarmRingsOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, began := claim.NewAlarm(), time.Now()
		a.Set(time.Second)
		a.Set(time.Millisecond)
		<-a.Rings()
		require.Equal(t, time.Second, time.Since(began))
		a.Set(time.Millisecond)
		<-time.After(time.Minute)
		require.Empty(t, a.Rings(), "nobody has said that it was heard")
		a.Heard()
		a.Set(time.Millisecond)
		<-a.Rings()
	})
}
