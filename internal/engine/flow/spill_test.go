package flow_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/bluecone-go/bluecone/internal/engine/flow"
)

func TestWhenALaneSpills(t *testing.T) {
	t.Parallel()
	type look struct {
		after       time.Duration
		isHoldingUp bool
	}
	hold := func(after time.Duration, n int) (looks []look) {
		for range n {
			looks = append(looks, look{after, true})
		}
		return looks
	}
	for name, c := range map[string]struct {
		looks  []look // after a first one, when nobody was held up
		limit  time.Duration
		active bool
	}{
		"nobody looks":                          {limit: time.Second},
		"others are held up for less":           {looks: hold(100*ms, 10), limit: time.Second},
		"others are held up for longer":         {looks: hold(100*ms, 11), limit: time.Second, active: true},
		"none are held up for so long":          {looks: []look{{time.Hour, false}}, limit: 0},
		"they do not wait at all":               {looks: hold(ms, 1), limit: 0, active: true},
		"a long time between two looks is less": {looks: hold(time.Hour, 3), limit: time.Second},
		"many long times":                       {looks: hold(time.Hour, 4), limit: time.Second, active: true},
		"in between they were not held up": {
			looks: append(append(hold(100*ms, 10), look{100 * ms, false}), hold(100*ms, 1)...), limit: time.Second,
		},
		"it lasts": {looks: append(hold(100*ms, 11), look{time.Second, false}), limit: time.Second, active: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var s flow.Spill
			now := start()
			s.Observe(now, false, c.limit)
			for _, l := range c.looks {
				now = now.Add(l.after)
				s.Observe(now, l.isHoldingUp, c.limit)
			}
			require.Equal(t, c.active, s.IsActive())
			s.Begin()
			require.True(t, s.IsActive())
			s.End()
			require.False(t, s.IsActive())
			s.Observe(now.Add(100*ms), true, 100*ms)
			require.False(t, s.IsActive(), "what was before is forgotten")
		})
	}
}

// Whatever is seen: a lane spills only after others have been held up for longer than the limit, and for no longer than that and
// one look more.
func TestSpillBeginsAfterTheLimit(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var s flow.Spill
		limit := time.Duration(rapid.IntRange(0, 3000).Draw(t, "limit ms")) * ms
		now, all, inARow := start(), time.Duration(0), time.Duration(0)
		s.Observe(now, false, limit)
		for range rapid.IntRange(0, 60).Draw(t, "looks") {
			passed := time.Duration(rapid.IntRange(0, 300).Draw(t, "ms")) * ms
			isHoldingUp := rapid.Bool().Draw(t, "is holding up")
			now = now.Add(passed)
			s.Observe(now, isHoldingUp, limit)
			if inARow += passed; !isHoldingUp {
				inARow, passed = 0, 0
			}
			all += passed
			require.False(t, s.IsActive() && all <= limit)
			require.False(t, !s.IsActive() && inARow > limit)
		}
	})
}
