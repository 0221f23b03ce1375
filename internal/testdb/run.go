package testdb

import (
	"context"
	"sync"
	"testing"

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

// Count answers the number that a query asks for.
func Count(t testing.TB, db bun.IDB, query string) (n int) {
	t.Helper()
	require.NoError(t, db.QueryRowContext(t.Context(), query).Scan(&n))
	return n
}
