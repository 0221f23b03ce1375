package health

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/telemetry"
)

const maxOutageWait = 5 * time.Second

// Outage remembers whether the database is known to be away, so that it is said once, by whichever
// part of the publisher notices first, and once that it is back. It is safe for concurrent use.
type Outage struct {
	logger *slog.Logger

	mu    sync.Mutex
	since time.Time     // when it was said
	last  time.Time     // of the errors that say so
	ended time.Time     // when it was last said to be over
	calm  time.Duration // without such an error until it is over
}

// A database without space still does what needs none, so an outage is over when nobody has met it for
// a while: shortCalm, and twice as long as the last time if it was not over after all.
const (
	shortCalm = 5 * time.Second
	longCalm  = time.Minute
)

// NewOutage returns one that tells a logger.
func NewOutage(logger *slog.Logger) *Outage { return &Outage{logger: logger} }

// tellsOutage reports whether err says that the database is away, refuses writes or has gone silent.
func tellsOutage(err error) bool {
	return dialect.IsAway(err) || errors.Is(err, context.DeadlineExceeded)
}

// begin says that the database is away, if nobody has. That the pool is closed is for [Outage.Wait] to say.
func (g *Outage) begin(ctx context.Context, err error) {
	if dialect.IsClosed(err) {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.last = time.Now()
	if g.since.IsZero() {
		g.since = g.last
		if g.calm = min(2*g.calm, longCalm); g.since.Sub(g.ended) > longCalm {
			g.calm = shortCalm
		}
		g.logger.WarnContext(ctx, "the database does not answer as it should; the publisher keeps trying", telemetry.Err, err)
	}
}

// Notice says that the database is away if err says so, and reports whether it does.
func (g *Outage) Notice(ctx context.Context, err error) bool {
	if !tellsOutage(err) {
		return false
	}
	g.begin(ctx, err)
	return true
}

// Level is the level at which a consequence of err is logged: DEBUG during an outage, which is logged once, and WARN otherwise.
func (g *Outage) Level(ctx context.Context, err error) slog.Level {
	if g.Notice(ctx, err) {
		return slog.LevelDebug
	}
	return slog.LevelWarn
}

// Wait says that err happened and waits, longer with every try. It returns an error if there is nothing to wait for: ctx ended, or the
// pool is closed, and no try will ever succeed.
func (g *Outage) Wait(ctx context.Context, err error, try int) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case dialect.IsClosed(err):
		return fmt.Errorf("outbox: the program has closed the publisher's *bun.DB, which nothing opens again: close it after Run has returned: "+
			"%w", dialect.ErrClosed())
	}
	g.begin(ctx, err)
	whole := min(100*time.Millisecond<<min(try, 6), maxOutageWait)
	select {
	case <-time.After(whole/2 + rand.N(whole/2)):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// IsFading reports whether an outage is known that nobody has met for a while.
func (g *Outage) IsFading() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.since.IsZero() && time.Since(g.last) > g.calm
}

// End says that the database is back, if it was away.
func (g *Outage) End(ctx context.Context) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.since.IsZero() {
		g.logger.InfoContext(ctx, "the database answers again", telemetry.Took, g.last.Sub(g.since))
		g.since, g.ended = time.Time{}, time.Now()
	}
}
