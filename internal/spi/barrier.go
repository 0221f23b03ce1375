package spi

import (
	"context"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/store"
)

// Barriers are what a producer's database says of its reservations at a ledger.
type Barriers = store.Barriers

// NewBarriers returns the barriers of a database.
func NewBarriers(db *bun.DB) (Barriers, error) {
	d, err := dialect.Of(db)
	return store.NewBarriers(d), err
}

// Commits says that a transaction of any library is the one of a token; false if something was said of the token before.
func Commits(ctx context.Context, tx store.Executor, token string) (first bool, err error) {
	return store.Commits(ctx, tx, token)
}
