package delivery

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bluecone-go/bluecone/internal/dialect"
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
		v.Counts = false // the circuit says when to try again
	case dialect.Classify(err) == dialect.Data:
		v.Status = store.Dead
	case d.Attempt < c.MaxAttempts(d.Event):
		v.Delay = c.Backoff(ctx, d.Event.Type, d.Attempt)
	case c.Config.SlowCadence > 0:
		v.Delay = c.Config.SlowCadence
	default:
		v.Status = store.Dead
	}
	if limit := c.MaxAge(d.Event.Type); v.Status == store.Failed && limit > 0 && d.sinceFirstRun() >= limit {
		v.Status, v.Counts = store.Dead, true
		v.Error = givenUp(d, limit, v.Error)
	}
	return v
}

// capped is how long a FAILED delivery may wait: when it is as old as its consumer's MaxAge it is due, and runs for the last time.
func capped(c *handler.Consumer, d *delivery, delay time.Duration) time.Duration {
	if limit := c.MaxAge(d.Event.Type); limit > 0 {
		return min(delay, max(limit-d.sinceFirstRun(), 0))
	}
	return delay
}

// givenUp is the error of a delivery that is too old to be tried again.
func givenUp(d *delivery, limit time.Duration, last string) string {
	return fmt.Sprintf("given up %v after its first run, because ConsumerConfig.MaxAge is %v: %s",
		d.sinceFirstRun().Round(time.Second), limit, last)
}
