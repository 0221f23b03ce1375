package ops

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/dialect"
)

// taken reports whether a place is there at once.
func taken(t *turns, caller string) (func(), bool) {
	w, err := t.join(caller)
	if err != nil {
		return nil, false
	}
	select {
	case <-w.ready:
		return func() { t.leave(caller) }, true
	default:
		t.giveUp(caller, w)
		return nil, false
	}
}

// With two places one caller has one of them, however much it asks for, and nobody in particular may have both.
func TestOneCallerLeavesRoom(t *testing.T) {
	t.Parallel()
	p := newTurns(2)
	leave, ok := taken(p, "eve")
	require.True(t, ok)
	_, ok = taken(p, "eve")
	require.False(t, ok)
	other, ok := taken(p, "rita")
	require.True(t, ok)
	leave()
	other()
	for range 2 {
		_, ok = taken(p, "")
		require.True(t, ok)
	}
	_, ok = taken(p, "rita")
	require.False(t, ok)
}

// Callers have their turns one after the other, and only so many may wait.
func TestCallersTakeTurns(t *testing.T) {
	t.Parallel()
	p := newTurns(1)
	leave, ok := taken(p, "eve")
	require.True(t, ok)
	var eve, rita []*waiter
	for range maxWaitingOf {
		w, err := p.join("eve")
		require.NoError(t, err)
		eve = append(eve, w)
	}
	_, err := p.join("eve")
	require.ErrorIs(t, err, ErrTooManyReaders)
	for range 2 {
		w, err := p.join("rita")
		require.NoError(t, err)
		rita = append(rita, w)
	}
	isReady := func(w *waiter) bool {
		select {
		case <-w.ready:
			return true
		default:
			return false
		}
	}
	leave()
	require.True(t, isReady(eve[0]))
	p.leave("eve")
	require.True(t, isReady(rita[0]), "not behind all of eve's")
	require.False(t, isReady(eve[1]))
	p.giveUp("rita", rita[1])
	p.leave("rita")
	require.True(t, isReady(eve[1]))
	for i := range maxWaiting {
		_, err = p.join(strings.Repeat("x", i%8))
		if err != nil {
			break
		}
	}
	require.ErrorIs(t, err, ErrTooManyReaders, "all that wait are bounded, too")
}

// A read ends when the last of those who wait for it has gone, and whoever comes then gets another one.
func TestAReadEndsWhenNobodyWaits(t *testing.T) {
	t.Parallel()
	a := newAccess(nil, dialect.Dialect{}, Config{Queries: 2})
	begun, ended := make(chan struct{}), make(chan struct{})
	read := func(ctx context.Context) (int, error) {
		close(begun)
		<-ctx.Done()
		close(ended)
		return 0, ctx.Err()
	}
	first, leaveFirst := context.WithCancel(t.Context())
	second, leaveSecond := context.WithCancel(t.Context())
	defer leaveSecond()
	answers := make(chan error, 2)
	go func() { _, err := share(first, a, "x", nil, read); answers <- err }()
	<-begun
	joined := make(chan struct{})
	go func() {
		close(joined)
		_, err := share(second, a, "x", nil, read)
		answers <- err
	}()
	<-joined
	for waiting := 0; waiting != 2; {
		a.mu.Lock()
		for _, f := range a.flights {
			waiting = f.waiting
		}
		a.mu.Unlock()
	}
	leaveFirst()
	require.ErrorIs(t, <-answers, context.Canceled)
	select {
	case <-ended:
		require.Fail(t, "somebody still waits")
	default:
	}
	leaveSecond()
	select {
	case <-ended:
	case <-time.After(5 * time.Minute):
		require.Fail(t, "the read goes on although nobody waits for it")
	}
	require.ErrorIs(t, <-answers, context.Canceled)
	v, err := share(t.Context(), a, "x", nil, func(context.Context) (int, error) { return 7, nil })
	require.NoError(t, err)
	require.Equal(t, 7, v)
}

// A document that is deeper than anything that was saved is hidden, not walked.
func TestADeepDocumentIsHidden(t *testing.T) {
	t.Parallel()
	r := newRedactor(Config{Publishable: []bus.Event{moved{}}})
	deep := strings.Repeat(`{"a":[`, maxDepth/2)
	_, hid := r.payload("person.moved", deep+"1"+strings.Repeat("]}", maxDepth/2))
	require.False(t, hid)
	got, hid := r.payload("person.moved", "["+deep+"1"+strings.Repeat("]}", maxDepth/2)+"]")
	require.True(t, hid)
	require.Equal(t, hidden, got)
}
