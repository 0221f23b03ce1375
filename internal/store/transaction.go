package store

import (
	"context"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/prepared"
)

type engineKey struct{}

// InTx runs one of the engine's own short transactions. Hooks recognise it by [IsEngine].
func InTx(
	ctx context.Context, db *bun.DB, d dialect.Dialect, stmts *prepared.Statements, fn func(ctx context.Context, tx bun.Tx) error,
) error {
	stmts.Learn(ctx)
	return db.RunInTx(context.WithValue(ctx, engineKey{}, true), d.ReadCommitted(), fn)
}

// IsEngine reports whether the context is that of a transaction of the engine: its commit wakes nobody.
func IsEngine(ctx context.Context) bool { return ctx.Value(engineKey{}) != nil }
