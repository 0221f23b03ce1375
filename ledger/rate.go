package ledger

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"sync"
	"time"

	"connectrpc.com/connect"
)

// crowd knows how much each caller asks for, so that none of them keeps the others waiting.
type crowd struct {
	mu   sync.Mutex
	seen map[string]*presence // by the names of the callers
}

// presence is what one caller asks for.
type presence struct {
	underWay int
	left     float64 // calls that may still be made, as of at
	at       time.Time
}

func newCrowd() *crowd { return &crowd{seen: make(map[string]*presence)} }

// enter lets a call in, unless there are too many of its caller: then it returns an error that says when to call again. Whoever is
// let in leaves afterwards.
func (c *crowd) enter(who Caller, now time.Time) (leave func(), tooMany *connect.Error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	rate := who.rate()
	burst := max(rate*burstTime.Seconds(), 1)
	p := c.seen[who.Name]
	if p == nil {
		c.forget(now)
		p = &presence{left: burst, at: now}
		c.seen[who.Name] = p
	}
	p.left, p.at = min(p.left+now.Sub(p.at).Seconds()*rate, burst), now
	switch {
	case p.underWay >= maxUnderWay:
		return nil, exhausted(1, "%s has %d calls under way, as many as it may have", who.Name, p.underWay)
	case p.left < 1:
		return nil, exhausted((1-p.left)/rate, "%s may make %g calls a second", who.Name, rate)
	}
	p.left--
	p.underWay++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		p.underWay--
	}, nil
}

// forget drops those who have not called lately, if there are many.
func (c *crowd) forget(now time.Time) {
	if len(c.seen) < maxCallers {
		return
	}
	for name, p := range c.seen {
		if p.underWay == 0 && now.Sub(p.at) > burstTime {
			delete(c.seen, name)
		}
	}
}

// rate is how many calls a second the caller may make of one instance.
func (c Caller) rate() float64 {
	if c.Rate <= 0 {
		return defaultRate
	}
	return c.Rate
}

const retryAfter = "Retry-After"

// exhausted is the error of a call that comes too early. It says when the next may come, in whole seconds.
func exhausted(seconds float64, format string, args ...any) *connect.Error {
	err := connect.NewError(connect.CodeResourceExhausted, fmt.Errorf(format+": call again after the time that Retry-After says", args...))
	err.Meta().Set(retryAfter, strconv.Itoa(int(math.Ceil(seconds))))
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
func limited(all *crowd, refuse refusal, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		leave, tooMany := all.enter(callerOf(r.Context()), time.Now())
		if tooMany != nil {
			refuse(w, r, tooMany, http.StatusTooManyRequests)
			return
		}
		defer leave()
		next.ServeHTTP(w, r)
	})
}
