package store

import (
	"context"
	"database/sql"
	"fmt"
	"slices"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

// Identity tells an event from another one that has been given the same id.
type Identity struct {
	Type                       string
	AggregateType, AggregateID string
	TenantID                   int64 // 0 for none
}

// Identities are those of the events with these ids that have a row, by uk_event_id.
func Identities(ctx context.Context, idb bun.IDB, d dialect.Dialect, ids []string) (map[string]Identity, error) {
	from := d.Each(eventTable, "event_id", "")
	if d.Name == "mysql" {
		from = eventTable + " AS l FORCE INDEX (uk_event_id) WHERE l.event_id IN (?)"
	}
	found := make(map[string]Identity, len(ids))
	for chunk := range slices.Chunk(ids, dialect.MostIDs) {
		err := EachRow(ctx, idb, func(rows *sql.Rows) error {
			var id string
			var of Identity
			err := rows.Scan(&id, &of.Type, &of.AggregateType, &of.AggregateID, (*tenant)(&of.TenantID))
			found[id] = of
			return err
		}, "SELECT l.event_id, l.event_type, l.aggregate_type, l.aggregate_id, l.tenant_id FROM "+from, bun.List(chunk))
		if err != nil {
			return nil, fmt.Errorf("read what events are: %w", err)
		}
	}
	return found, nil
}
