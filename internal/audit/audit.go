// Package audit writes bc_audit_log: who did what to what, and why.
package audit

import (
	"context"
	"fmt"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/text"
)

// Entry is one thing that a person or a job did.
type Entry struct {
	Actor   string // at most 128 characters
	Action  string // a few words, such as "release"
	Target  string // an event id, a consumer, "ORDER/7", …
	Reason  string
	Details string
}

// Write adds an entry, in the transaction of what was done.
func Write(ctx context.Context, tx bun.IDB, d dialect.Dialect, e Entry) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO bc_audit_log (actor, action, target, reason, details, created_at) "+
		"VALUES (?, ?, ?, ?, ?, "+d.Now+")",
		text.Clean(e.Actor, 128), e.Action, text.Clean(e.Target, 255), text.Clean(e.Reason, text.MaxError), text.Clean(e.Details, text.MaxError))
	if err != nil {
		return fmt.Errorf("audit %s %s: %w", e.Action, e.Target, err)
	}
	return nil
}

// Aggregate is the target that stands for an entity.
func Aggregate(kind, id string) string { return kind + "/" + id }
