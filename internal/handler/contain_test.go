package handler_test

import (
	"context"
	"errors"
	"math"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/handler"
)

// Panics, runtime.Goexit, and errors that wrap themselves end a call, not the process.
func TestCallsContainWhatHandlersDo(t *testing.T) {
	t.Parallel()
	for says, run := range map[string]func() error{
		"handler panicked: oh":      func() error { panic("oh") },
		"runtime.Goexit was called": func() error { runtime.Goexit(); return nil },
		"it goes round":             func() error { return &round{} },
		"one\ntwo":                  func() error { return errors.Join(errors.New("one"), errors.New("two")) },
	} {
		all, _ := registrations(t)
		c := handler.NewConsumer(all, "A", "A", handler.Config{})
		c.Add(handlerOf("one", func(context.Context, handler.Transaction, []*handler.Message) error { return run() }))
		require.ErrorContains(t, call(t, c, handler.Transaction{}, messages("one", `{}`)), says)
	}
}

// round wraps itself.
type round struct{}

func (r *round) Error() string { return "it goes round" }
func (r *round) Unwrap() error { return r }

// A backoff of the user's that panics, exits or answers nonsense is an error.
func TestBackoffsAreContained(t *testing.T) {
	t.Parallel()
	for says, fn := range map[string]func(int) time.Duration{
		"panicked: oh":              func(int) time.Duration { panic("oh") },
		"runtime.Goexit was called": func(int) time.Duration { runtime.Goexit(); return 0 },
		"must not be negative":      func(int) time.Duration { return -1 },
	} {
		_, err := handler.CallBackoff(fn, 1)
		require.ErrorContains(t, err, says)
	}
	d, err := handler.CallBackoff(func(n int) time.Duration { return time.Duration(n) * time.Hour }, 2)
	require.NoError(t, err)
	require.Equal(t, 2*time.Hour, d)
}

// The longest timeout there is abandons nobody.
func TestHandlersMayHaveAllTimeThereIs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all, _ := registrations(t)
		c := handler.NewConsumer(all, "A", "A", handler.Config{Timeout: math.MaxInt64})
		c.Add(handlerOf("one", func(context.Context, handler.Transaction, []*handler.Message) error {
			<-time.After(24 * time.Hour)
			return nil
		}))
		require.NoError(t, call(t, c, handler.Transaction{}, messages("one", `{}`)))
	})
}
