package pgxtx_test

import (
	"context"
	"maps"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/adapter/pgxtx"
	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/txtest"
)

func TestSuite(t *testing.T) { //nolint:paralleltest // its tests are
	txtest.Run(t, txtest.Adapter[pgx.Tx]{Databases: []string{"postgres"}, Open: open})
}

func open(w *txtest.World) txtest.Door[pgx.Tx] {
	pool, err := pgxpool.New(context.Background(), w.DSN)
	require.NoError(w.T, err)
	w.T.Cleanup(pool.Close)
	door := txtest.Door[pgx.Tx]{
		Begin:    pool.Begin,
		Commit:   func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) },
		Rollback: func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) },
		Save:     pgxtx.Save,
		Ways:     maps.Clone(ways),
		Number: func(ctx context.Context, tx pgx.Tx, query string, args ...any) (n int, err error) {
			err = tx.QueryRow(ctx, w.Native(query), args...).Scan(&n)
			return n, err
		},
		Nested: func(ctx context.Context, tx pgx.Tx, fn func(pgx.Tx) error) error { return pgx.BeginFunc(ctx, tx, fn) },
		On: func(c *bus.Consumer, fn func(context.Context, pgx.Tx, bus.Message[txtest.Paid]) error) {
			pgxtx.On(c, fn)
		},
		OnBatch: func(c *bus.Consumer, fn func(context.Context, pgx.Tx, []bus.Message[txtest.Paid]) error) {
			pgxtx.OnBatch(c, fn)
		},
		NotOpen: map[string]pgx.Tx{"nil": nil, "no transaction of a pool": (*pgxpool.Tx)(nil)},
	}
	for name, way := range ways {
		door.Ways[name] = func(ctx context.Context, tx pgx.Tx, query string, args ...any) error {
			return way(ctx, tx, w.Native(query), args...)
		}
	}
	return door
}
