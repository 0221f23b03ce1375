package crowd

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// enter lets calls in until there are too many, and tells how many that were.
func enter(c *Crowd, name string, l Limits, now time.Time) (n int, why TooMany) {
	for {
		leave, tooMany := c.Enter(name, l, now)
		if tooMany != nil {
			return n, *tooMany
		}
		leave()
		n++
	}
}

// A caller may have only so many calls under way, and others have theirs.
func TestCallsUnderWay(t *testing.T) {
	t.Parallel()
	c, now := New(10), time.Now()
	l := Limits{PerSecond: 1000, Burst: 1000, UnderWay: 3}
	var leave func()
	for range l.UnderWay {
		var tooMany *TooMany
		leave, tooMany = c.Enter("eve", l, now)
		require.Nil(t, tooMany)
	}
	_, tooMany := c.Enter("eve", l, now)
	require.Equal(t, &TooMany{UnderWay: true}, tooMany)
	_, tooMany = c.Enter("anna", l, now)
	require.Nil(t, tooMany)
	leave()
	_, tooMany = c.Enter("eve", l, now)
	require.Nil(t, tooMany)
}

// A caller may make only so many calls a second, and save up only so many; a refused call costs nothing, and a limit that has been
// changed counts at once.
func TestCallsASecond(t *testing.T) {
	t.Parallel()
	c, now := New(10), time.Now()
	l := Limits{PerSecond: 10, Burst: 50, UnderWay: 1}
	for _, step := range []struct {
		after time.Duration
		want  int
	}{{0, 50}, {time.Second, 10}, {time.Second, 10}, {time.Hour, 50}} {
		now = now.Add(step.after)
		n, why := enter(c, "shop", l, now)
		require.Equal(t, step.want, n)
		require.False(t, why.UnderWay)
		require.Equal(t, 100*time.Millisecond, why.Wait.Round(time.Microsecond))
	}
	l.PerSecond = 20
	now = now.Add(time.Second)
	n, _ := enter(c, "shop", l, now)
	require.Equal(t, 10, n, "what was before the change counts by the old rate")
	n, why := enter(c, "shop", l, now.Add(time.Second))
	require.Equal(t, 20, n)
	require.Equal(t, 50*time.Millisecond, why.Wait.Round(time.Microsecond))
}

// Those who have called lately, or have calls under way, are known; of the others only so many.
func TestOthersAreForgotten(t *testing.T) {
	t.Parallel()
	c, now := New(100), time.Now()
	l := Limits{PerSecond: 10, Burst: 1, UnderWay: 1}
	_, tooMany := c.Enter("eve", l, now)
	require.Nil(t, tooMany)
	for i := range 1000 {
		now = now.Add(10 * time.Millisecond)
		n, _ := enter(c, strconv.Itoa(i), l, now)
		require.Equal(t, 1, n)
		require.LessOrEqual(t, len(c.seen), c.most+1)
	}
	_, tooMany = c.Enter("eve", l, now)
	require.Equal(t, &TooMany{UnderWay: true}, tooMany)
	n, _ := enter(c, "999", l, now)
	require.Zero(t, n)
}
