package delivery

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Lanes share the room for payloads: one payload may be larger, whoever does not fit waits in line, those in line go before
// others beyond half of the room, and nobody keeps the first place who got some.
func TestPayloadRoomIsSharedInTurns(t *testing.T) {
	t.Parallel()
	queue := func() *retryQueue { return &retryQueue{ln: new(lane), isClaiming: true} } // woken, it claims again
	a, b, c := queue(), queue(), queue()
	r := newPayloadRoom(100)
	require.True(t, r.take(a, 150), "larger than the room, and alone")
	require.False(t, r.take(a, 10))
	r.claimEnded(a, true, false)
	require.False(t, r.take(b, 60))
	r.claimEnded(b, false, false)
	require.False(t, r.mustWait(a))
	require.True(t, r.mustWait(b))
	require.False(t, a.isAskedAgain)
	r.give(150)
	require.True(t, a.isAskedAgain, "it is told that there is room")
	require.True(t, r.take(a, 60))
	require.False(t, r.take(a, 60))
	r.claimEnded(a, true, false)
	require.True(t, r.mustWait(a), "it got some, so it is b's turn")
	require.False(t, r.mustWait(b))
	require.False(t, b.isAskedAgain)
	require.False(t, r.take(c, 30), "60 are in use, and b waits")
	r.claimEnded(c, false, false)
	r.give(60)
	require.True(t, b.isAskedAgain)
	require.True(t, r.take(b, 60))
	r.claimEnded(b, true, true)
	require.False(t, r.mustWait(a))
	require.True(t, r.mustWait(c))
	r.claimEnded(a, false, true)
	require.True(t, r.take(c, 40))
	r.claimEnded(c, true, true)
	_, waits := r.bytes.First()
	require.False(t, waits)
	require.Zero(t, r.bytes.Limit())
	r.give(100)
	require.Equal(t, 100, r.bytes.Limit())
}
