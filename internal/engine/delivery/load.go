package delivery

import (
	"context"
	"fmt"

	"github.com/bluecone-go/bluecone/internal/eventrow"
	"github.com/bluecone-go/bluecone/internal/store"
)

// load reads events by id, the first of them, as far as they fit. Events whose row is gone are missing from the
// result; more says that others may be missing because they did not fit.
func (l *Lanes) load(ctx context.Context, eventIDs []string, fits func(bytes int) bool,
) (found map[string]*eventrow.Row, more bool, err error) {
	rows, more, err := store.EventsByID(ctx, l.regs.DB, l.cfg.Dialect, eventIDs, fits)
	if err != nil {
		return nil, false, fmt.Errorf("load events: %w", err)
	}
	found = make(map[string]*eventrow.Row, len(rows))
	for i := range rows {
		found[rows[i].ID] = &rows[i]
	}
	return found, more, nil
}
