package flow

import (
	"cmp"
	"slices"
	"time"
)

// Workers knows the batches of one consumer that run side by side, and says when one more may begin.
//
// A second transaction must be worth its cost: less than a full batch waits for a running batch to end, but no longer
// than that batch's time box. And a strained database gets fewer batches at a time than the consumer may have. In both
// cases a batch that takes far too long is slow: it does not count, so that it holds up nobody.
type Workers struct {
	began []time.Time   // of the running batches, the oldest first
	usual time.Duration // moving average of what a batch takes; one that is slow changes it little
}

// slowBatches is how many times as long as usual a batch takes that does not count for a strained database.
const slowBatches = 4

// Running is how many batches run.
func (w *Workers) Running() int { return len(w.began) }

// Begin notes that a batch begins. The time must not be before that of an earlier call.
func (w *Workers) Begin(now time.Time) { w.began = append(w.began, now) }

// End notes that the batch that began then has ended.
func (w *Workers) End(began, now time.Time) {
	i := slices.IndexFunc(w.began, began.Equal)
	if i < 0 {
		return
	}
	w.began = slices.Delete(w.began, i, i+1)
	took := now.Sub(began)
	usual := cmp.Or(w.usual, took)
	w.usual = (3*usual + min(took, 2*usual)) / 4
}

// Wait is how long to wait until another batch may begin; 0 means now. At most so many should run at a time, of those
// that are not slow. Less than a full batch is queued if queued is less than full.
func (w *Workers) Wait(now time.Time, most, queued, full int, box time.Duration) time.Duration {
	slow := max(box, slowBatches*w.usual)
	if over := w.countSince(now.Add(-slow)) - most; over >= 0 {
		return w.began[len(w.began)-most].Add(slow).Sub(now)
	}
	if queued >= full || w.countSince(now.Add(-box)) == 0 {
		return 0
	}
	return w.began[len(w.began)-1].Add(box).Sub(now)
}

// countSince is how many of the running batches began after then.
func (w *Workers) countSince(then time.Time) (n int) {
	for _, began := range w.began {
		if began.After(then) {
			n++
		}
	}
	return n
}
