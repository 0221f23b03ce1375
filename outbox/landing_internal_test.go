package outbox

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// aloft is a session with flights, of which one has not landed.
func aloft(landed ...*flight) *session {
	s := &session{landing: make(chan struct{}, 1), flights: map[int64]*flight{0: {}}}
	for i, f := range landed {
		f.row.OutboxID = int64(i + 1)
		s.flights[f.row.OutboxID] = f
		s.land(f)
	}
	<-s.landing
	return s
}

func sent() *flight {
	f := &flight{fresh: true}
	f.clean.Store(true)
	return f
}

// What is SENT for certain is settled at once; what has to be looked at, a little later and together.
func TestWhatIsSettledLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		done, failed := sent(), &flight{fresh: true}
		s := aloft(failed, done)
		require.Equal(t, []*flight{done}, s.ripe(false))
		require.Empty(t, s.ripe(false))
		began := time.Now()
		<-s.landing
		require.Equal(t, settleLater, time.Since(began))
		require.Equal(t, []*flight{failed}, s.ripe(false))
	})
}

// It is not left for later when nothing else can join it, or at the end.
func TestNothingIsSettledLaterInVain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		failed := &flight{fresh: true}
		require.Equal(t, []*flight{failed}, aloft(failed).ripe(true))
		s := aloft(failed)
		delete(s.flights, 0) // nothing else is in flight
		require.Equal(t, []*flight{failed}, s.ripe(false))
		many := make([]*flight, settleBatch+1)
		for i := range many {
			many[i] = &flight{fresh: true}
		}
		require.Len(t, aloft(many...).ripe(false), settleBatch)
	})
}
