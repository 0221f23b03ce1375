package delivery

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/engine/flow"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/text"
)

// verdict decides what an attempt that answered err makes of its delivery.
func verdict(ctx context.Context, c *handler.Consumer, d *delivery, err error) store.Verdict {
	v := store.Verdict{Status: store.Failed, Counts: true, Error: text.Error(err)}
	var skip *handler.SkipError
	var later *handler.RetryAfterError
	switch {
	case errors.As(err, &skip):
		v.Status, v.Error = store.Skipped, skip.Reason
	case handler.IsPermanent(err):
		v.Status = store.Dead
	case errors.As(err, &later):
		v.Delay, v.Counts = later.Delay, false
	case handler.IsUnreached(err):
		v.Delay, v.Counts = untilServiceIsBack(d), false
	case dialect.Classify(err) == dialect.Data:
		v.Status = store.Dead
	case d.Attempt < c.MaxAttempts(d.Event):
		v.Delay = c.Backoff(ctx, d.Event.Type, d.Attempt)
	case c.Config.SlowCadence > 0:
		v.Delay = c.Config.SlowCadence
	default:
		v.Status = store.Dead
	}
	if v.Status == store.Failed {
		limitAge(&v, c.MaxAge(d.Event.Type), d.sinceFirstRun())
	}
	return v
}

// untilServiceIsBack is how long a delivery waits that did not reach what its handler calls; the circuit lets it run before that. It
// differs by a quarter, so that not all come at once.
func untilServiceIsBack(d *delivery) time.Duration {
	wait := flow.RetryUnreached(d.sinceFirstRun())
	return wait*3/4 + rand.N(wait/2)
}

// limitAge ends a delivery that is too old to be tried again, and shortens a wait that would make it older: it runs for the last time
// at its limit. 0 is no limit.
func limitAge(v *store.Verdict, limit, age time.Duration) {
	switch {
	case limit <= 0:
	case age >= limit:
		v.Status, v.Counts, v.Error = store.Dead, true, handler.GivenUp(age, limit, v.Error)
	default:
		v.Delay = min(v.Delay, limit-age)
	}
}
