package console

import (
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/bluecone-go/bluecone/ops"
)

// crowd knows how much each principal asks for, so that one of them, or a script with their token, does not keep the
// others waiting.
type crowd struct {
	mu   sync.Mutex
	seen map[string]*presence
}

// presence is what one principal asks for.
type presence struct {
	underWay int
	left     float64 // requests that may still be sent, as of at
	at       time.Time
}

func newCrowd() *crowd { return &crowd{seen: make(map[string]*presence)} }

// enter lets a request in, unless there are too many of the principal: under way, which is the answer 503, or within a
// time, which is 429. Whoever is let in leaves afterwards.
func (c *crowd) enter(name string, now time.Time) (leave func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.seen[name]
	if p == nil {
		c.forget(now)
		p = &presence{left: maxBurst, at: now}
		c.seen[name] = p
	}
	p.left, p.at = min(p.left+now.Sub(p.at).Seconds()*maxRate, maxBurst), now
	if p.underWay >= maxUnderWay {
		return nil, &refusal{http.StatusServiceUnavailable, "error.crowd", fmt.Errorf("too many requests of %s under way: %w", name, ops.ErrBusy)}
	}
	if p.left < 1 {
		return nil, &refusal{http.StatusTooManyRequests, "error.crowd", fmt.Errorf("too many requests of %s: ask again in a moment", name)}
	}
	p.left--
	p.underWay++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		p.underWay--
	}, nil
}

// forget drops those who have asked for nothing lately, if there are many.
func (c *crowd) forget(now time.Time) {
	if len(c.seen) < maxPrincipals {
		return
	}
	for name, p := range c.seen {
		if p.underWay == 0 && p.left+now.Sub(p.at).Seconds()*maxRate >= maxBurst {
			delete(c.seen, name)
		}
	}
}
