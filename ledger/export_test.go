package ledger

import (
	"context"
	"net/http"
	"time"
)

// AskDue asks the producers of reservations that are due now, by a client of the test's.
func (s *Server) AskDue(ctx context.Context, client *http.Client) error {
	return s.reserving.askDue(ctx, client)
}

// Waiting is how many calls of Fetch wait.
func (s *Server) Waiting() (n int) {
	s.waiting.mu.Lock()
	defer s.waiting.mu.Unlock()
	for _, calls := range s.waiting.calls {
		n += len(calls)
	}
	return n
}

// What the tests of limits need.
var NewCrowd = newCrowd

// MaxUnderWay is a limit.
const MaxUnderWay = maxUnderWay

// Enter is crowd.enter.
func Enter(c *crowd, who Caller, now time.Time) (leave func(), err error) {
	leave, tooMany := c.enter(who, now)
	if tooMany != nil {
		return nil, tooMany
	}
	return leave, nil
}
