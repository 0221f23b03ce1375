package health

import (
	"context"
	"database/sql/driver"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/testdb"
)

// An outage that was not over after all takes twice as long to be over the next time, so that a
// database without space, which still does what needs none, does not fill the log.
func TestAnOutageThatComesBackIsOverLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := NewOutage(slog.New(slog.DiscardHandler))
		lasts := func() (calm time.Duration) {
			g.begin(t.Context(), ErrSilent)
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

// An outage is said once, by whichever part meets it first, and so is its end. What it entails is not worth a line each.
func TestAnOutageIsSaidOnce(t *testing.T) {
	t.Parallel()
	var log testdb.Log
	g := NewOutage(log.Logger())
	ctx := t.Context()
	g.End(ctx)
	require.Empty(t, log.String(), "there was none")
	require.False(t, g.Notice(ctx, errors.New("no such table")))
	require.Equal(t, slog.LevelWarn, g.Level(ctx, errors.New("no such table")))
	require.Empty(t, log.String())
	for _, err := range []error{driver.ErrBadConn, ErrSilent, context.DeadlineExceeded} {
		require.Equal(t, slog.LevelDebug, g.Level(ctx, err), err)
	}
	require.Equal(t, 1, strings.Count(log.String(), "the database does not answer as it should"))
	g.End(ctx)
	g.End(ctx)
	require.Equal(t, 1, strings.Count(log.String(), "the database answers again"))
}

// The wait for a database that is away grows from try to try, up to five seconds, and ends with the run.
func TestTheWaitForTheDatabaseGrows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := NewOutage(slog.New(slog.DiscardHandler))
		for try, most := range map[int]time.Duration{1: 200 * time.Millisecond, 3: 800 * time.Millisecond, 6: maxOutageWait, 100: maxOutageWait} {
			began := time.Now()
			require.NoError(t, g.Wait(t.Context(), ErrSilent, try))
			require.GreaterOrEqual(t, time.Since(began), most/2, try)
			require.LessOrEqual(t, time.Since(began), most, try)
		}
		ctx, end := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, end)
		require.ErrorIs(t, g.Wait(ctx, ErrSilent, 100), context.Canceled)
		require.ErrorIs(t, g.Wait(ctx, ErrSilent, 1), context.Canceled, "it has ended already")
	})
}
