package ops

import (
	"context"
	"errors"
	"slices"
	"sync"
)

// ErrTooManyReaders means that too many statements wait for the database already, of one caller or of all. Ask again in a moment.
var ErrTooManyReaders = errors.New("too many readers wait for the database: ask again in a moment")

// turns lets so many statements run at a time. Callers have their turns one after the other, however much each asks for,
// and with more than one place none of them gets all.
type turns struct {
	mu      sync.Mutex
	places  int
	free    int
	held    map[string]int       // places, by caller
	waiting map[string][]*waiter // by caller; never empty
	order   []string             // the callers that wait, the next one first
	count   int                  // of all that wait
}

type waiter struct{ ready chan struct{} }

func newTurns(places int) *turns {
	return &turns{places: places, free: places, held: make(map[string]int), waiting: make(map[string][]*waiter)}
}

// take waits for a place. Whoever gets one calls done afterwards.
func (t *turns) take(ctx context.Context, caller string) (done func(), err error) {
	w, err := t.join(caller)
	if err != nil {
		return nil, err
	}
	select {
	case <-w.ready:
		return func() { t.leave(caller) }, nil
	case <-ctx.Done():
		t.giveUp(caller, w)
		return nil, context.Cause(ctx)
	}
}

func (t *turns) join(caller string) (*waiter, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	own := maxWaitingOf
	if caller == "" { // nobody in particular, so many
		own = maxWaiting
	}
	if t.count >= maxWaiting || len(t.waiting[caller]) >= own {
		return nil, ErrTooManyReaders
	}
	w := &waiter{make(chan struct{})}
	if len(t.waiting[caller]) == 0 {
		t.order = append(t.order, caller)
	}
	t.waiting[caller] = append(t.waiting[caller], w)
	t.count++
	t.next()
	return w, nil
}

// next gives places to those whose turn it is.
func (t *turns) next() {
	for t.free > 0 {
		i := slices.IndexFunc(t.order, func(caller string) bool { return t.held[caller] < t.most(caller) })
		if i < 0 {
			return
		}
		caller := t.order[i]
		w := t.waiting[caller][0]
		t.drop(caller, 0)
		if len(t.waiting[caller]) > 0 { // behind the others
			at := slices.Index(t.order, caller)
			t.order = append(slices.Delete(t.order, at, at+1), caller)
		}
		t.free--
		t.held[caller]++
		close(w.ready)
	}
}

// most is how many places a caller may have: one stays for the others.
func (t *turns) most(caller string) int {
	if caller == "" || t.places == 1 {
		return t.places
	}
	return t.places - 1
}

// drop takes a waiter out of its queue.
func (t *turns) drop(caller string, i int) {
	t.waiting[caller] = slices.Delete(t.waiting[caller], i, i+1)
	t.count--
	if len(t.waiting[caller]) == 0 {
		delete(t.waiting, caller)
		t.order = slices.DeleteFunc(t.order, func(c string) bool { return c == caller })
	}
}

func (t *turns) giveUp(caller string, w *waiter) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := slices.Index(t.waiting[caller], w); i >= 0 {
		t.drop(caller, i)
		return
	}
	t.release(caller) // it had just got its place
}

func (t *turns) leave(caller string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.release(caller)
}

func (t *turns) release(caller string) {
	t.free++
	if t.held[caller]--; t.held[caller] == 0 {
		delete(t.held, caller)
	}
	t.next()
}
