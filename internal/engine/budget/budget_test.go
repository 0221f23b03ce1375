package budget

import (
	"database/sql"
	"fmt"
	"log/slog"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"

	"github.com/bluecone-go/bluecone/internal/handler"
)

// However many consumers there are, they do not open a connection each: not even in a pool that has no limit.
func TestManyConsumersShareConnections(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ consumers, open, budget, limit int }{
		{3, 0, 0, 4}, {64, 0, 0, 4}, {65, 0, 64, 1}, {2000, 0, 64, 1}, {2000, 12, 10, 1}, {3, 100, 0, 4}, {3, 8, 0, 2},
	} {
		pool, err := sql.Open("pgx", "postgres://nobody@127.0.0.1:1/none") // nobody connects
		require.NoError(t, err)
		pool.SetMaxOpenConns(c.open)
		regs := &handler.Registrations{DB: bun.NewDB(pool, pgdialect.New()), Logger: slog.Default()}
		for i := range c.consumers {
			name := fmt.Sprint("C", i)
			regs.Consumers = append(regs.Consumers, handler.NewConsumer(regs, name, name, handler.Config{}))
		}
		b := New(regs)
		require.Equal(t, c.budget, cap(b.tokens), "%+v", c)
		require.Equal(t, c.limit, b.Share("C0"), "%+v", c)
		require.NoError(t, pool.Close())
	}
}
