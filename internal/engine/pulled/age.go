package pulled

import (
	"context"
	"time"

	"github.com/bluecone-go/bluecone/internal/handler"
)

// EndAged is the answer to a delivery that ran for the first time so long ago: one that would be tried again never is if it is as old as
// the consumer's MaxAge. A publisher gives such a delivery up in the same words.
func (c *Consumer) EndAged(ctx context.Context, m *handler.Message, sinceFirstRun time.Duration, a Answer) Answer {
	limit := c.c.MaxAge(m.Event.Type)
	isTriedAgain := a.Outcome == Later || a.Outcome == Failed
	if !isTriedAgain || limit <= 0 || sinceFirstRun < limit {
		return a
	}
	wasCounted := a.Outcome == Failed
	a.Outcome = Permanent
	a.Error = handler.GivenUp(sinceFirstRun, limit, a.Error)
	if !wasCounted {
		c.count(ctx, m, a)
	}
	return a
}
