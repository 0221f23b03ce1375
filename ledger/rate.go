package ledger

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"connectrpc.com/connect"

	"github.com/bluecone-go/bluecone/internal/spi"
)

// rate is how many calls a second the caller may make of one instance.
func (c Caller) rate() float64 {
	if c.Rate <= 0 {
		return defaultRate
	}
	return c.Rate
}

const retryAfter = "Retry-After"

// limits are those of the caller.
func (c Caller) limits() spi.CallLimits {
	return spi.CallLimits{PerSecond: c.rate(), Burst: max(int(c.rate()*burstTime.Seconds()), 1), UnderWay: maxUnderWay}
}

// enter lets a call in, or returns an error that says when to call again. Whoever is let in calls leave afterwards.
func enter(all *spi.Crowd, who Caller, now time.Time) (leave func(), refused *connect.Error) {
	leave, tooMany := all.Enter(who.Name, who.limits(), now)
	switch {
	case tooMany == nil:
		return leave, nil
	case tooMany.UnderWay:
		return nil, exhausted(time.Second, "%s has %d calls under way, as many as it may have", who.Name, maxUnderWay)
	default:
		return nil, exhausted(tooMany.Wait, "%s may make %g calls a second", who.Name, who.rate())
	}
}

// exhausted is the error of a call that comes too early. It says when the next may come, in whole seconds.
func exhausted(wait time.Duration, format string, args ...any) *connect.Error {
	err := connect.NewError(connect.CodeResourceExhausted, fmt.Errorf(format+": call again after the time that Retry-After says", args...))
	err.Meta().Set(retryAfter, strconv.Itoa(int(math.Ceil(wait.Seconds()))))
	return err
}

// askedToWait is what the service has asked a caller who came too early to wait.
func askedToWait(err error) (wait time.Duration, yes bool) {
	refused, ok := errors.AsType[*connect.Error](err)
	if !ok || refused.Code() != connect.CodeResourceExhausted {
		return 0, false
	}
	seconds, err := strconv.Atoi(refused.Meta().Get(retryAfter))
	if err != nil || seconds < 0 {
		seconds = 1
	}
	return time.Duration(seconds) * time.Second, true
}

// limited lets only as many calls of each caller through as there may be.
func limited(all *spi.Crowd, refuse refusal, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		leave, refused := enter(all, callerOf(r.Context()), time.Now())
		if refused != nil {
			refuse(w, r, refused, http.StatusTooManyRequests)
			return
		}
		defer leave()
		next.ServeHTTP(w, r)
	})
}
