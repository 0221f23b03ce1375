package outbox

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/bluecone-go/bluecone/internal/telemetry"
)

const maxOutageWait = 5 * time.Second

// outage remembers whether the database is known to be away, so that it is said once.
type outage struct{ since time.Time }

// wait says that err happened and waits, longer with every try. It reports false if ctx ended.
func (g *outage) wait(ctx context.Context, logger *slog.Logger, err error, try int) bool {
	if ctx.Err() != nil {
		return false
	}
	if g.since.IsZero() {
		g.since = time.Now()
		logger.WarnContext(ctx, "the database does not answer as it should; the publisher keeps trying", telemetry.Err, err)
	}
	whole := min(100*time.Millisecond<<min(try, 6), maxOutageWait)
	select {
	case <-time.After(whole/2 + rand.N(whole/2)):
		return true
	case <-ctx.Done():
		return false
	}
}

// over says that the database is back, if it was away.
func (g *outage) over(ctx context.Context, logger *slog.Logger) {
	if !g.since.IsZero() {
		logger.InfoContext(ctx, "the database answers again", telemetry.Took, time.Since(g.since))
		g.since = time.Time{}
	}
}
