package store

import (
	"context"
	"fmt"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/text"
)

// AuditEntry is a row of bc_audit_log: what a person or a job did to what, and why.
type AuditEntry struct {
	Actor   string // at most 128 characters
	Action  string // a few words, such as "release"
	Target  string // an event id, a consumer, "ORDER/7", …
	Reason  string
	Details string
}

// WriteAudit adds an entry, in the transaction of what was done.
func WriteAudit(ctx context.Context, tx bun.IDB, d dialect.Dialect, e AuditEntry) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO bc_audit_log (actor, action, target, reason, details, created_at) "+
		"VALUES (?, ?, ?, ?, ?, "+d.Now+")",
		text.Clean(e.Actor, 128), e.Action, text.Clean(e.Target, 255), text.Clean(e.Reason, text.MaxError), text.Clean(e.Details, text.MaxError))
	if err != nil {
		return fmt.Errorf("audit %s %s: %w", e.Action, e.Target, err)
	}
	return nil
}

// AggregateTarget is the target of an entry about an aggregate.
func AggregateTarget(kind, id string) string { return kind + "/" + id }
