package flow

import (
	"cmp"
	"time"
)

// Times are moving averages of how long the batches of a consumer take. The zero value knows nothing yet.
type Times struct {
	perEvent time.Duration // a handler for one event, 0 before the first
	usual    time.Duration // the same, but slow calls change it only when there are many
	overhead time.Duration // a transaction beside its handlers
	batch    time.Duration // a batch, with all that goes on around its handlers
}

// ObserveCall learns how long a handler took for each of its events: that it is slow, at once.
func (t *Times) ObserveCall(each time.Duration) {
	each = max(each, time.Microsecond)
	usual := cmp.Or(t.usual, each)
	t.usual = (3*usual + min(each, 2*usual)) / 4
	switch {
	case t.perEvent == 0:
		t.perEvent = each
	case each > t.perEvent:
		t.perEvent = (t.perEvent + 3*each) / 4
	default:
		t.perEvent = (3*t.perEvent + each) / 4
	}
}

// ObserveOverhead learns how long a transaction takes beside its handlers: that it is less than it was, soon. The
// first ones of a connection take very long.
func (t *Times) ObserveOverhead(took time.Duration) {
	if took < t.overhead {
		t.overhead = (t.overhead + took) / 2
	} else {
		t.overhead = (7*t.overhead + took) / 8
	}
}

// ObserveBatch learns how long a batch took, with all that went on around its handlers.
func (t *Times) ObserveBatch(took time.Duration) { t.batch = (3*cmp.Or(t.batch, took) + took) / 4 }

// Usual is how long a handler usually takes for one event: one slow call changes it little. It is 0 before the first.
func (t *Times) Usual() time.Duration { return t.usual }
