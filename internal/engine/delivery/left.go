package delivery

import (
	"context"
	"errors"
	"time"

	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/telemetry"
)

const (
	mostVersioned = 50  // lanes that one look asks for: they have their turns
	leftPage      = 200 // deliveries that a lane looks at in one go
)

// Left are the keys of the consumers to which deliveries may have been left by others: if there are any, [Lanes.TakeLeft]
// has something to do. They are those that know a schema version that others may not know, some of them at a time. Only
// the publisher's loop calls it.
func (l *Lanes) Left() []string {
	if len(l.versioned) == 0 {
		return nil
	}
	n := min(len(l.versioned), mostVersioned)
	l.versioned = append(l.versioned[n:], l.versioned[:n]...)
	l.asked = l.versioned[len(l.versioned)-n:]
	return l.asked
}

// TakeLeft lets the lanes that [Lanes.Left] last asked for claim what instances that do not know its schema version have
// left to others. It returns at once. A lane that has just done so does it again only if it must see all.
func (l *Lanes) TakeLeft(ctx context.Context, mustSeeAll bool) error {
	if err := l.cfg.Roster.Refresh(ctx); err != nil {
		return err
	}
	for _, key := range l.asked {
		if ln := l.lanes[key]; !ln.isHalted() {
			ln.retries.takeLeft(mustSeeAll)
		}
	}
	return nil
}

// leftWalk is how far a lane has looked at the deliveries that others have left to those that know their schema version.
type leftWalk struct {
	mayBeMore bool
	after     int64         // by the ids of their rows
	took      time.Duration // so far
	rests     time.Time     // until when the lane does not begin another walk: one takes at most a tenth of the time
}

func (q *retryQueue) takeLeft(mustSeeAll bool) {
	q.ln.mu.Lock()
	defer q.ln.mu.Unlock()
	if mustSeeAll || time.Now().After(q.left.rests) {
		q.left.mayBeMore = true
		q.refillLocked()
	}
}

// findLeft lists deliveries that others have left and that can be run here, by the ids of their rows, at most so many.
func (q *retryQueue) findLeft(ctx context.Context, most int) (known []int64) {
	q.ln.mu.Lock()
	w := q.left
	q.ln.mu.Unlock()
	if !w.mayBeMore || most <= 0 {
		return nil
	}
	for began := time.Now(); w.mayBeMore && len(known) == 0; w.took, began = w.took+time.Since(began), time.Now() {
		page, err := q.l.regs.Log.Left.Page(ctx, q.l.regs.DB, q.c.Key, w.after, leftPage)
		if err != nil {
			q.l.regs.Logger.Log(ctx, q.ln.out.level(ctx, err), "deliveries that others have left could not be seen; it is tried again in a moment",
				telemetry.Consumer, q.c.Name, telemetry.Err, err)
		}
		w.mayBeMore = len(page) == leftPage
		for _, d := range page {
			if len(known) == most {
				w.mayBeMore = true
				break
			}
			if w.after = d.ID; q.c.Knows(d.EventType, d.SchemaVersion) {
				known = append(known, d.ID)
			}
		}
	}
	if !w.mayBeMore {
		w = leftWalk{rests: time.Now().Add(10 * w.took)}
	}
	q.ln.mu.Lock()
	defer q.ln.mu.Unlock()
	q.left = w
	return known
}

// leave ends leased deliveries of which this release does not know the schema version.
func (q *retryQueue) leave(ctx context.Context, ds []*delivery) {
	if len(ds) == 0 {
		return
	}
	err := q.ln.out.insist(ctx, func(ctx context.Context) error {
		return q.l.cfg.Budget.Write(ctx, func() error { return q.l.regs.Log.Leave(ctx, q.l.cfg.Instance, leasesOf(ds)...) })
	})
	if err != nil && !errors.Is(err, store.ErrLeaseLost) {
		q.ln.out.warn(ctx, ds[0], "deliveries could not be left to instances that know their schema version; their leases will expire", err)
	}
}
