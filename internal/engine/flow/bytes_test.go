package flow_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/bluecone-go/bluecone/internal/engine/flow"
)

func TestOnePayloadMayBeLargerThanTheLimit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		used, bytes int
		fits        bool
		limit       int
	}{
		"nothing is used":                      {bytes: 100, fits: true, limit: 100},
		"larger than the limit, and alone":     {bytes: 1000, fits: true, limit: 100},
		"what is left":                         {used: 60, bytes: 40, fits: true, limit: 40},
		"more than what is left":               {used: 60, bytes: 41, limit: 40},
		"all is used":                          {used: 100, bytes: 1},
		"all is used, and nothing is asked":    {used: 100, fits: true},
		"more is used than there is":           {used: 150, bytes: 1},
		"more is used, and nothing to be said": {used: 150},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := flow.NewBytes(100)
			b.Take(c.used)
			require.Equal(t, c.fits, b.Fits(c.bytes))
			require.Equal(t, c.limit, b.Limit())
			b.Give(c.used)
			require.Equal(t, 100, b.Limit())
		})
	}
}

// Users share the bytes: one payload may be larger, whoever does not fit waits in line, those in line go before others
// beyond half of them, and nobody keeps the first place who got some.
func TestBytesAreSharedInTurns(t *testing.T) {
	t.Parallel()
	b := flow.NewSharedBytes[string](100)
	_, ok := b.First()
	require.False(t, ok)
	require.True(t, b.TakeFor("a", 150), "larger than the limit, and alone")
	require.False(t, b.TakeFor("a", 10))
	require.False(t, b.EndTurn("a", true, false), "it is the only one, and got some")
	require.False(t, b.TakeFor("b", 60))
	require.False(t, b.EndTurn("b", false, false), "it got nothing")
	require.False(t, b.MustWait("a"))
	require.True(t, b.MustWait("b"))
	b.Give(150)
	require.True(t, b.TakeFor("a", 60))
	require.False(t, b.TakeFor("a", 60))
	b.EndTurn("a", true, false)
	require.True(t, b.MustWait("a"), "it got some, so it is b's turn")
	first, ok := b.First()
	require.True(t, ok)
	require.Equal(t, "b", first)
	require.False(t, b.TakeFor("c", 30), "60 are used, and b waits")
	require.False(t, b.EndTurn("c", false, false))
	b.Give(60)
	require.True(t, b.TakeFor("c", 30), "up to half of them nobody has to wait")
	require.True(t, b.TakeFor("b", 60))
	require.True(t, b.EndTurn("b", true, true), "all fitted: it is a's turn")
	require.False(t, b.MustWait("a"))
	require.True(t, b.MustWait("c"))
	require.False(t, b.EndTurn("d", true, true), "it was not in line")
}

// Whatever the users take and give: no more is used than there is, but for one payload alone; and each who waits has their turn
// before anybody who waits has two.
func TestLimitOfBytesIsKept(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		const limit, users = 100, 4
		b := flow.NewSharedBytes[int](limit)
		var held []int                // bytes of payloads that somebody holds
		var passed [users]map[int]int // by who waits: how often others went ahead since
		for range rapid.IntRange(1, 80).Draw(t, "claims") {
			if len(held) > 0 && rapid.Bool().Draw(t, "a batch ends") {
				i := rapid.IntRange(0, len(held)-1).Draw(t, "which")
				b.Give(held[i])
				held = slices.Delete(held, i, i+1)
				continue
			}
			user := rapid.IntRange(0, users-1).Draw(t, "user")
			if b.MustWait(user) {
				continue
			}
			got, all := false, true
			for range rapid.IntRange(1, 5).Draw(t, "payloads") {
				bytes := rapid.IntRange(1, 160).Draw(t, "bytes")
				if all = b.TakeFor(user, bytes); !all {
					break
				}
				got, held = true, append(held, bytes)
			}
			b.EndTurn(user, got, all)
			used := 0
			for _, n := range held {
				used += n
			}
			require.True(t, used <= limit || len(held) == 1, "%v", held)
			require.Equal(t, max(limit-used, 0), b.Limit())
			if passed[user] = nil; !all {
				passed[user] = make(map[int]int)
			}
			for other := range users {
				if passed[other] != nil && other != user && passed[user] != nil && got {
					passed[other][user]++
					require.LessOrEqual(t, passed[other][user], 2, "%d went ahead of %d, which waits", user, other)
				}
			}
		}
	})
}
