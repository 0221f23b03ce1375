package spi

import (
	"context"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/store"
)

// EventIdentity tells an event from another one that has been given the same id.
type EventIdentity = store.Identity

// EventIdentities are those of the events with these ids, as tx sees them, of those that have a row.
func EventIdentities(ctx context.Context, db *bun.DB, tx bun.IDB, ids []string) (map[string]EventIdentity, error) {
	d, err := dialect.Of(db)
	if err != nil {
		return nil, err
	}
	return store.Identities(ctx, tx, d, ids)
}
