package migrations

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

const (
	consumerKeys  = 7                // the version that gives what stands under a former name to the present one
	sinceRenaming = 10 * time.Minute // instances announce their consumers every 30 s
)

// checks are what must hold before the version of that number is applied.
var checks = map[int]func(ctx context.Context, conn bun.Conn, d dialect.Dialect) error{ //nolint:gochecknoglobals // a constant table
	consumerKeys: refuseHalfRenamed,
}

// refuseHalfRenamed makes sure that no instance runs a consumer under its former name any more: what such an
// instance did after the migration would stand under a name that nobody looks for, and happen again.
func refuseHalfRenamed(ctx context.Context, conn bun.Conn, d dialect.Dialect) error {
	rows, err := conn.QueryContext(ctx, "SELECT name, aliases, COALESCE("+d.Micros("seen_at")+", 0) FROM bc_consumer")
	if err != nil {
		return fmt.Errorf("read the consumer registry: %w", err)
	}
	defer rows.Close()
	seen, former := make(map[string]int64), make(map[string][]string)
	for rows.Next() {
		var name, aliases string
		var at int64
		if err := rows.Scan(&name, &aliases, &at); err != nil {
			return fmt.Errorf("read the consumer registry: %w", err)
		}
		var names []string
		_ = json.Unmarshal([]byte(aliases), &names) // what is not JSON names nobody, for the migration too
		seen[name], former[name] = at, names
	}
	for name, aliases := range former {
		for _, alias := range aliases {
			at, ok := seen[alias]
			if apart := time.Duration(seen[name]-at) * time.Microsecond; ok && apart.Abs() < sinceRenaming && !slices.Contains(former[alias], name) {
				return fmt.Errorf("instances run the consumer %q under its former name %q too, or did %v ago: stop those of the older release, "+
					"wait until the newer has run for %v more (or DELETE FROM bc_consumer WHERE name = '%s'), and migrate again", name, alias,
					apart.Abs().Round(time.Second), sinceRenaming, alias)
			}
		}
	}
	return rows.Err()
}
