package flow_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/bluecone-go/bluecone/internal/engine/flow"
)

func TestWhatMayStartByTheRate(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rate    float64
		spent   []int         // at once, at the start
		passed  time.Duration // since
		asked   int
		may     int
		wait    time.Duration
		takes50 time.Duration
	}{
		"no rate":                             {asked: 500, may: 500},
		"no rate, whatever has been spent":    {spent: []int{500}, asked: 500, may: 500},
		"a tenth of a second at first":        {rate: 100, asked: 500, may: 10, takes50: 500 * ms},
		"less than there is":                  {rate: 100, asked: 3, may: 3, takes50: 500 * ms},
		"at least one":                        {rate: 2, asked: 500, may: 1, takes50: 25 * time.Second},
		"all is spent":                        {rate: 100, spent: []int{10}, asked: 1, wait: 10 * ms, takes50: 500 * ms},
		"all is spent by two":                 {rate: 100, spent: []int{4, 6}, asked: 1, wait: 10 * ms, takes50: 500 * ms},
		"half a token has come":               {rate: 100, spent: []int{10}, passed: 5 * ms, asked: 1, wait: 5 * ms, takes50: 500 * ms},
		"some have come":                      {rate: 100, spent: []int{10}, passed: 30 * ms, asked: 500, may: 3, takes50: 500 * ms},
		"no more are kept than a burst":       {rate: 100, spent: []int{10}, passed: time.Hour, asked: 500, may: 10, takes50: 500 * ms},
		"less than one a second":              {rate: 0.5, spent: []int{1}, asked: 1, wait: 2 * time.Second, takes50: 100 * time.Second},
		"the clock goes back: none are taken": {rate: 100, spent: []int{5}, passed: -time.Hour, asked: 500, may: 5, takes50: 500 * ms},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := flow.NewBucket(c.rate)
			for _, n := range c.spent {
				b.Spend(start(), n)
			}
			may, wait := b.Limit(start().Add(c.passed), c.asked)
			require.Equal(t, c.may, may)
			require.InDelta(t, c.wait, wait, float64(time.Microsecond))
			require.Equal(t, c.takes50, b.Takes(50))
		})
	}
}

// Whoever starts what it may: never more than the rate and a burst, and after the wait one may start.
func TestNoMoreStartsThanTheRateAllows(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rate := rapid.Float64Range(0.1, 5000).Draw(t, "rate")
		b, now, started := flow.NewBucket(rate), start(), 0
		burst := max(int(rate/10), 1)
		for range rapid.IntRange(1, 60).Draw(t, "looks") {
			now = now.Add(time.Duration(rapid.IntRange(0, 3000).Draw(t, "ms")) * ms)
			asked := rapid.IntRange(1, 500).Draw(t, "asked")
			may, wait := b.Limit(now, asked)
			require.LessOrEqual(t, may, asked)
			require.Equal(t, may == 0, wait > 0)
			if may == 0 {
				one, _ := b.Limit(now.Add(wait+time.Microsecond), 1)
				require.Equal(t, 1, one)
				continue
			}
			b.Spend(now, may)
			started += may
			require.LessOrEqual(t, float64(started), float64(burst)+rate*now.Sub(start()).Seconds()+0.001)
		}
	})
}

// A bucket of its own burst keeps that many; what was before a change counts by the old rate.
func TestBucketIsChanged(t *testing.T) {
	t.Parallel()
	b, now := flow.BucketOf(10, 50), start()
	require.True(t, b.IsFull(now))
	may, _ := b.Limit(now, 100)
	require.Equal(t, 50, may)
	b.Spend(now, 50)
	now = now.Add(time.Second)
	b.Change(now, 100, 20)
	may, _ = b.Limit(now, 100)
	require.Equal(t, 10, may)
	require.False(t, b.IsFull(now))
	now = now.Add(time.Second)
	may, _ = b.Limit(now, 100)
	require.Equal(t, 20, may)
	require.True(t, b.IsFull(now))
}
