package delivery

import (
	"sync/atomic"
	"time"

	"github.com/bluecone-go/bluecone/internal/engine/claim"
)

// Signals are what the lanes tell the loop of.
type Signals struct {
	freed     chan struct{}
	again     chan struct{}
	takenOver atomic.Bool
}

func newSignals() *Signals {
	return &Signals{freed: make(chan struct{}, 1), again: make(chan struct{}, 1)}
}

// Freed is signaled when a lane has taken deliveries out of its queue, or has nothing to do.
func (s *Signals) Freed() <-chan struct{} { return s.freed }

// DueAgain is signaled when something is due that a lane had put off. Nobody else tells the loop of it.
func (s *Signals) DueAgain() <-chan struct{} { return s.again }

// HaveTakenOver reports whether a lane has claimed deliveries of which a lease had run out, since it was last asked.
func (s *Signals) HaveTakenOver() bool { return s.takenOver.Swap(false) }

func (s *Signals) free() { claim.Signal(s.freed) }

func (s *Signals) dueAgainAfter(wait time.Duration) {
	time.AfterFunc(wait, func() { claim.Signal(s.again) })
}
