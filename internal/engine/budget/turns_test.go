package budget

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

func ofSQLite(t *testing.T, db *bun.DB) *Transactions {
	t.Helper()
	regs := &handler.Registrations{DB: db, Logger: slog.New(slog.DiscardHandler)}
	regs.Consumers = append(regs.Consumers, handler.NewConsumer(regs, "C", "key of C", handler.Config{}))
	return New(regs)
}

// On SQLite the engine's writers and the lanes take turns; a writer whose time is up does not wait.
func TestWritersOfSQLiteTakeTurns(t *testing.T) {
	t.Parallel()
	b := ofSQLite(t, testdb.Open(t, "sqlite", testdb.Bare))
	require.Equal(t, []int{1, 4}, []int{b.Most(), b.Share("key of C")})
	over, err := b.AcquireForLane(t.Context())
	require.NoError(t, err)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = b.Acquire(ended)
	require.ErrorIs(t, err, context.Canceled)
	_, err = b.AcquireForLane(ended)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, b.Write(ended, func() error { t.Error("it is not its turn"); return nil }), context.Canceled)
	begun, done := make(chan struct{}), make(chan error)
	go func() { done <- b.Write(t.Context(), func() error { close(begun); return nil }) }()
	select {
	case <-begun:
		t.Fatal("two write at a time")
	default:
	}
	over()
	require.NoError(t, <-done)
	no := errors.New("no")
	require.ErrorIs(t, b.Write(t.Context(), func() error { return no }), no)
	over, err = b.AcquireForLane(t.Context())
	require.NoError(t, err, "those that have not waited hold nothing")
	over()
}

// Where there are connections enough nobody waits for anybody.
func TestNobodyTakesTurnsWithoutALimit(t *testing.T) {
	t.Parallel()
	var b Transactions
	require.Equal(t, math.MaxInt, b.Most())
	for range 3 {
		_, err := b.Acquire(t.Context())
		require.NoError(t, err)
		_, err = b.AcquireForLane(t.Context())
		require.NoError(t, err)
	}
	wrote := false
	require.NoError(t, b.Write(t.Context(), func() error { wrote = true; return nil }))
	require.True(t, wrote)
}
