package health

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// An outage that was not over after all takes twice as long to be over the next time, so that a
// database without space, which still does what needs none, does not fill the log.
func TestAnOutageThatComesBackIsOverLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := NewOutage(slog.New(slog.DiscardHandler))
		lasts := func() (calm time.Duration) {
			g.begin(t.Context(), errSilent)
			for ; !g.IsFading(); calm += time.Second {
				<-time.After(time.Second)
			}
			g.End(t.Context())
			return calm - time.Second // it takes more than so long
		}
		for _, want := range []time.Duration{shortCalm, 2 * shortCalm, 4 * shortCalm, 8 * shortCalm, longCalm, longCalm} {
			require.Equal(t, want, lasts())
			<-time.After(longCalm / 2)
		}
		<-time.After(longCalm)
		require.Equal(t, shortCalm, lasts(), "another one")
	})
}
