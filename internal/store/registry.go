package store

import (
	"context"
	"fmt"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/prepared"
)

// AbsentAfter is how long no instance may have announced a consumer, or an event type of it, before doctor and alerts call it
// absent, whether anything waits for it or not. The texts of the doctor say "a day".
const AbsentAfter = 24 * time.Hour

// Registry is what instances have announced in bc_consumer and bc_consumer_type.
type Registry struct {
	d     dialect.Dialect
	stmts *prepared.Statements
}

// NewRegistry returns the registry of a database.
func NewRegistry(d dialect.Dialect, stmts *prepared.Statements) Registry { return Registry{d, stmts} }

// State is what the registry looked like at a moment: two that are equal are of the same registry.
type State struct{ consumers, types, backfills string }

// Look tells the state of the registry, and the time by the database's clock in microseconds. It is one row, whatever the
// number of consumers: an instance that knows the registry in that state need not read it. Every announcement writes seen_at, of a
// release before this one too; what operators change, pauses, removals and backfills, is in the other sums. A pause counts by the time
// of its end: one consumer may be resumed as another is paused.
func (r Registry) Look(ctx context.Context, idb bun.IDB) (s State, now int64, err error) {
	seen := "SUM(" + r.d.Number("seen_at") + ")"
	paused := "SUM(CASE WHEN paused_until > " + r.d.Now + " THEN " + r.d.Number("paused_until") + " END)"
	rows, err := r.stmts.On(idb).QueryContext(ctx, "SELECT "+r.d.Micros(r.d.Now)+", "+
		"(SELECT "+r.sums(seen, "SUM(LENGTH(event_types))", paused)+" FROM bc_consumer), "+
		"(SELECT "+r.sums(seen, "SUM(LENGTH(event_type))")+" FROM bc_consumer_type), "+
		"(SELECT "+r.sums("SUM(id)")+" FROM bc_bulk_operation WHERE "+OpenBackfill+")")
	if err != nil {
		return s, 0, fmt.Errorf("look at the consumer registry: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		if err := rows.Scan(&now, &s.consumers, &s.types, &s.backfills); err != nil {
			return s, 0, fmt.Errorf("look at the consumer registry: %w", err)
		}
	}
	return s, now, rows.Err()
}

// sums is a text of the number of rows, and of more.
func (r Registry) sums(more ...string) string {
	sums := append([]string{"COUNT(*)"}, more...)
	text, between := "", ""
	for _, sum := range sums {
		if r.d.Name == "mysql" {
			text += between + "COALESCE(" + sum + ", 0)"
			between = ", '/', "
		} else {
			text += between + "CAST(COALESCE(" + sum + ", 0) AS TEXT)"
			between = " || '/' || "
		}
	}
	if r.d.Name == "mysql" {
		return "CONCAT(" + text + ")"
	}
	return text
}
