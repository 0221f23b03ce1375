package outbox

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/bluecone-go/bluecone/internal/telemetry"
)

const (
	// lookEvery is how long the publishers of a process wait between two looks for commits that nobody reports.
	lookEvery = 2 * time.Millisecond
	// lookFor is how long they look for the commit of a transaction. Later the poll finds its events.
	lookFor = 2 * time.Second
)

// unseen looks for the commits of transactions that bun's hook does not see: plain ones, those of other pools, and those in which
// Save has got another context. It looks while a publisher of this process runs, until the events can be seen.
type unseen struct {
	ob      *Outbox
	commits chan struct{} // one was seen: it may be one of those that are looked for

	mu    sync.Mutex
	calls []unseenCall
	stop  context.CancelFunc // of the goroutine that looks, nil without one
	ended chan struct{}      // closed when it has ended
}

// unseenCall is a call of Save. What it has saved becomes visible together.
type unseenCall struct {
	ids   []string
	until time.Time
}

// add notes what a call of Save has saved, and looks for it if a publisher runs that would take it.
func (u *unseen) add(now time.Time, ids []string) {
	if len(ids) == 0 {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.ob.notify.hears() || !u.ob.here.any() || len(u.calls) == mostUnseen {
		return
	}
	u.calls = append(u.calls, unseenCall{ids, now.Add(lookFor)})
	if u.stop == nil {
		ctx, stop := context.WithCancel(context.Background())
		u.stop, u.ended = stop, make(chan struct{})
		go u.look(ctx, u.ended)
	}
}

// unsubscribe ends the wakes of a publisher, and with the last one the looks: nobody takes what they find.
func (u *unseen) unsubscribe(p *Publisher) {
	u.ob.here.unsubscribe(p)
	if u.ob.here.any() {
		return
	}
	u.mu.Lock()
	stop, ended := u.stop, u.ended
	u.mu.Unlock()
	if stop != nil {
		stop()
		<-ended
	}
}

// look looks again and again, until nothing is left to look for.
func (u *unseen) look(ctx context.Context, ended chan<- struct{}) {
	defer close(ended)
	timer := time.NewTimer(lookEvery)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-u.commits:
		}
		ids := u.open(ctx, time.Now())
		if len(ids) == 0 {
			return
		}
		asking, cancel := context.WithTimeout(ctx, lookFor)
		found, err := u.ob.saving.Committed(asking, u.ob.db, ids)
		cancel()
		if err != nil {
			u.giveUp(ctx, err)
		} else if shown := u.seen(found); len(shown) > 0 {
			u.ob.here.handOver(shown)
		}
		timer.Reset(lookEvery)
	}
}

// open are the first events of the calls that may still be looked for. Without any the looks are over.
func (u *unseen) open(ctx context.Context, now time.Time) (ids []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if ctx.Err() != nil {
		u.calls = nil
	}
	u.calls = slices.DeleteFunc(u.calls, func(c unseenCall) bool { return !now.Before(c.until) })
	for _, c := range u.calls {
		ids = append(ids, c.ids[0])
	}
	if len(ids) == 0 {
		u.stop()
		u.stop = nil
	}
	return ids
}

// seen takes out the calls whose events were found, and returns all of these.
func (u *unseen) seen(found map[string]bool) (ids []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.calls = slices.DeleteFunc(u.calls, func(c unseenCall) bool {
		if found[c.ids[0]] {
			ids = append(ids, c.ids...)
		}
		return found[c.ids[0]]
	})
	return ids
}

// giveUp leaves all to the poll when the database has not answered.
func (u *unseen) giveUp(ctx context.Context, err error) {
	u.mu.Lock()
	u.calls = nil
	u.mu.Unlock()
	if ctx.Err() == nil {
		u.ob.logger.WarnContext(ctx, "commits could not be looked for; the poll finds the events", telemetry.Err, err)
	}
}
