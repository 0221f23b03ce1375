package settle

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/eventrow"
)

func rowOf(id int64, bytes int) eventrow.Row {
	return eventrow.Row{OutboxID: id, ID: "e", Type: "a.b", LockVersion: 1, Payload: make([]byte, bytes)}
}

// An event is to be settled when the dispatch and every delivery that it was offered for have an outcome, and not before.
func TestFlightEndsWithItsLastOutcome(t *testing.T) {
	t.Parallel()
	fs := NewFlights(10, 1000)
	f := fs.Begin(rowOf(7, 3), 0, nil)
	f.Leave("OLD")
	f.Route([]string{"A", "FULL", "OLD", "ELSEWHERE"}, 2)
	f.Wait("ELSEWHERE")
	f.Refuse("FULL")
	waiting := f.Waiting()
	require.Len(t, waiting, 3)
	for i, want := range []struct {
		consumer string
		isLeft   bool
	}{{"OLD", true}, {"ELSEWHERE", false}, {"FULL", false}} {
		require.Equal(t, want.consumer, waiting[i].Consumer)
		require.Equal(t, want.isLeft, waiting[i].Left, want.consumer)
		require.Equal(t, int64(7), waiting[i].OutboxID)
	}
	f.Done(Succeeded)
	require.Empty(t, fs.take(true), "the dispatch is still open")
	f.Done(Succeeded)
	require.Equal(t, []*Flight{f}, fs.take(true))
	e := f.event()
	require.Equal(t, Event{
		Lease: dialect.Pair{ID: 7, Version: 1}, EventID: "e", Needed: []string{"A", "FULL", "OLD", "ELSEWHERE"},
		Waits: []string{"OLD", "ELSEWHERE", "FULL"}, Certain: true,
	}, e)
}

// One delivery that has not succeeded makes it uncertain what the log says, and so does an event that was claimed before.
func TestFlightIsCertainOnlyIfAllHasSucceededHere(t *testing.T) {
	t.Parallel()
	fs := NewFlights(10, 1000)
	for outcome, isCertain := range map[Outcome]bool{Succeeded: true, Recorded: false, Abandoned: false} {
		f := fs.Begin(rowOf(1, 0), 0, nil)
		f.Route([]string{"A"}, 1)
		f.Done(Succeeded)
		f.Done(outcome)
		require.Equal(t, isCertain, f.event().Certain, "%d", outcome)
	}
	again := rowOf(2, 0)
	again.LockVersion = 2
	f := fs.Begin(again, 0, nil)
	f.Route(nil, 0)
	require.False(t, f.event().Certain)
}

// There is room for so many events and bytes, but for one event, and what is settled makes room again.
func TestFlightsHaveRoom(t *testing.T) {
	t.Parallel()
	fs := NewFlights(3, 100)
	require.Equal(t, 3, fs.Most())
	require.Equal(t, 3, fs.Free())
	require.Equal(t, 100, fs.FreeBytes())
	one := fs.Begin(rowOf(2, 60), 0, nil)
	require.Equal(t, 2, fs.Free())
	require.Equal(t, 40, fs.FreeBytes())
	large := fs.Begin(rowOf(1, 500), 0, nil)
	require.Zero(t, fs.Free(), "its bytes leave no room")
	require.Zero(t, fs.FreeBytes())
	require.Equal(t, 2, fs.Len())
	require.Equal(t, []*Flight{large, one}, fs.all(), "in the order of their ids")
	require.Equal(t, []eventrow.Row{rowOf(3, 0)}, fs.Without([]eventrow.Row{rowOf(1, 0), rowOf(3, 0), rowOf(2, 0)}))
	require.Empty(t, fs.Settled())
	fs.remove([]*Flight{large})
	<-fs.Settled()
	require.Equal(t, 2, fs.Free())
	fs.Wake()
	<-fs.Settled()
}
