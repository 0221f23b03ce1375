package health

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Only what waits for longer than the limit without an answer is ended: each answer begins the time anew.
func TestOnlySilenceEndsWhatWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := NewSilence(time.Minute)
		waits := func(answers int) error {
			return s.Limit(t.Context(), func(ctx context.Context) error {
				for range answers {
					<-time.After(50 * time.Second)
					s.Reset()
				}
				<-ctx.Done()
				return ctx.Err()
			})
		}
		for _, answers := range []int{0, 3} {
			began := time.Now()
			require.ErrorIs(t, waits(answers), ErrSilent)
			require.Equal(t, time.Minute+time.Duration(answers)*50*time.Second, time.Since(began))
		}
		failed := errors.New("no such table")
		require.ErrorIs(t, s.Limit(t.Context(), func(context.Context) error { return failed }), failed)
		require.NoError(t, s.Limit(t.Context(), func(context.Context) error { return nil }))
	})
}

// What is ended from outside is not the database's silence.
func TestTheEndOfTheRunIsNoSilence(t *testing.T) {
	t.Parallel()
	ctx, end := context.WithCancel(t.Context())
	err := NewSilence(time.Hour).Limit(ctx, func(ctx context.Context) error {
		end()
		return ctx.Err()
	})
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, ErrSilent)
}
