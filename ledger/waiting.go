package ledger

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/spi"
)

const (
	lookEvery  = 100 * time.Millisecond // while somebody waits
	wokenAtOne = 4                      // of those who wait for one consumer, by one look: the others would find nothing
)

// waiting are the calls of Fetch that wait. One statement looks for all of them, however many they are, so that none needs a
// connection of its own.
type waiting struct {
	db     *bun.DB
	remote *spi.RemoteDeliveries
	logger *slog.Logger
	nudge  chan struct{}

	mu     sync.Mutex
	closed bool
	calls  map[string]map[chan struct{}]bool // by consumer; true for those that have found nothing
}

func newWaiting(db *bun.DB, remote *spi.RemoteDeliveries, logger *slog.Logger) *waiting {
	return &waiting{db: db, remote: remote, logger: logger, nudge: make(chan struct{}, 1), calls: make(map[string]map[chan struct{}]bool)}
}

// join lets a call wait for a consumer: due is closed when something may be due. Call leave when the wait is over. It answers
// nil after the service has been told to stop.
func (w *waiting) join(consumer string) (due chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil
	}
	if w.calls[consumer] == nil {
		w.calls[consumer] = make(map[chan struct{}]bool)
	}
	due = make(chan struct{})
	w.calls[consumer][due] = false
	return due
}

// isIdle reports whether a call waits that has found nothing for the consumer: another one need not look. If something has come since, the
// next look wakes some of them.
func (w *waiting) isIdle(consumer string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, foundNothing := range w.calls[consumer] {
		if foundNothing {
			return true
		}
	}
	return false
}

// wait waits until something may be due, or its end has come. Whoever has looked and found nothing tells the others.
func (w *waiting) wait(ctx context.Context, consumer string, due chan struct{}, hasLooked bool, end <-chan time.Time,
) (isOver bool, err error) {
	w.mu.Lock()
	if _, ok := w.calls[consumer][due]; ok && hasLooked { // it was not woken meanwhile
		w.calls[consumer][due] = true
	}
	w.mu.Unlock()
	select {
	case <-due:
		return false, nil
	case <-end:
		return true, nil
	case <-ctx.Done():
		return true, connect.NewError(connect.CodeCanceled, ctx.Err())
	}
}

func (w *waiting) leave(consumer string, call chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.calls[consumer], call)
	if len(w.calls[consumer]) == 0 {
		delete(w.calls, consumer)
	}
}

// look makes the next look come at once.
func (w *waiting) look() {
	select {
	case w.nudge <- struct{}{}:
	default:
	}
}

// run looks until ctx ends, and then ends all waits.
func (w *waiting) run(ctx context.Context) {
	defer w.close()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-w.nudge:
		}
		if !w.hasCalls() {
			continue
		}
		consumers, err := spi.DueConsumers(ctx, w.db)
		err = errors.Join(err, w.remote.UnparkLate(ctx))
		if err != nil && ctx.Err() == nil {
			w.logger.WarnContext(ctx, "the ledger could not look for deliveries; the next look tries again", "error", err)
		}
		w.wake(consumers)
	}
}

func (w *waiting) hasCalls() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.calls) > 0
}

// wake lets a few of the calls for each of these consumers look.
func (w *waiting) wake(consumers []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range consumers {
		n := 0
		for call := range w.calls[c] {
			if n == wokenAtOne {
				break
			}
			close(call)
			delete(w.calls[c], call)
			n++
		}
	}
}

// close ends all waits.
func (w *waiting) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	for _, calls := range w.calls {
		for call := range calls {
			close(call)
		}
	}
	clear(w.calls)
}
