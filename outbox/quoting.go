package outbox

import (
	"context"
	"fmt"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

// checkQuoting looks once whether the database reads texts as bun writes them. Nothing of anybody's is written before.
func (o *Outbox) checkQuoting(ctx context.Context, db dialect.Rower) error {
	if o.quotes.Load() {
		return nil
	}
	if err := o.d.CheckQuoting(ctx, db); err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	o.quotes.Store(true)
	return nil
}
