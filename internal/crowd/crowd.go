// Package crowd lets only so many calls of each caller in, so that none of them keeps the others waiting.
package crowd

import (
	"sync"
	"time"

	"github.com/bluecone-go/bluecone/internal/engine/flow"
)

// Limits are those of one caller.
type Limits struct {
	PerSecond float64 // calls a second
	Burst     int     // calls at once, of a caller that has made none for a while
	UnderWay  int     // calls that have not ended
}

// TooMany says why a call is not let in.
type TooMany struct {
	UnderWay bool          // so many have not ended; else it comes too early
	Wait     time.Duration // after which the next may come, where it comes too early
}

// Crowd knows how much each caller asks for. It is safe for concurrent use.
type Crowd struct {
	most int
	mu   sync.Mutex
	seen map[string]*presence // by the names of the callers
}

// presence is what one caller asks for.
type presence struct {
	underWay int
	bucket   flow.Bucket
}

// New makes a crowd that begins to forget callers when it knows so many: those who have not called for a while.
func New(most int) *Crowd { return &Crowd{most: most, seen: make(map[string]*presence)} }

// Enter lets a call in, unless there are too many of its caller. Whoever is let in calls leave afterwards.
func (c *Crowd) Enter(name string, l Limits, now time.Time) (leave func(), tooMany *TooMany) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.seen[name]
	if p == nil {
		c.forget(now)
		p = &presence{bucket: flow.BucketOf(l.PerSecond, l.Burst)}
		c.seen[name] = p
	}
	if p.underWay >= l.UnderWay {
		return nil, &TooMany{UnderWay: true}
	}
	p.bucket.Change(now, l.PerSecond, l.Burst) // the limits may have been changed meanwhile
	if may, wait := p.bucket.Limit(now, 1); may == 0 {
		return nil, &TooMany{Wait: wait}
	}
	p.bucket.Spend(now, 1)
	p.underWay++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		p.underWay--
	}, nil
}

// forget drops those who may call as often as ever, if there are many.
func (c *Crowd) forget(now time.Time) {
	if len(c.seen) < c.most {
		return
	}
	for name, p := range c.seen {
		if p.underWay == 0 && p.bucket.IsFull(now) {
			delete(c.seen, name)
		}
	}
}
