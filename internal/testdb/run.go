package testdb

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
)

// Run runs all of them, publishers or schedules for example, until the test ends.
func Run[R interface {
	Run(ctx context.Context) error
}](t testing.TB, all ...R,
) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for _, r := range all {
		wg.Go(func() { _ = r.Run(ctx) })
	}
	t.Cleanup(func() { cancel(); wg.Wait() })
}

// Exec runs a statement, which must succeed.
func Exec(t testing.TB, db bun.IDB, query string, args ...any) {
	t.Helper()
	_, err := db.ExecContext(t.Context(), query, args...)
	require.NoError(t, err, query)
}

// Count answers the number that a query asks for.
func Count(t testing.TB, db bun.IDB, query string) (n int) {
	t.Helper()
	require.NoError(t, db.QueryRowContext(t.Context(), query).Scan(&n))
	return n
}

// Eventually waits until ok is true, for [Patience] at most. It asks at first soon and then less and less often, down to twenty times a
// second: hundreds of tests that ask a database without a pause would take the time that what they wait for needs.
func Eventually(t testing.TB, ok func() bool, what string) {
	t.Helper()
	over := time.Now().Add(Patience())
	for pause := time.Millisecond; !ok(); pause = min(2*pause, 50*time.Millisecond) {
		require.True(t, time.Now().Before(over), "it has taken too long: "+what)
		<-time.After(pause)
	}
}
