package ledger

import (
	"context"
	"net/http"
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
var (
	Enter       = enter
	MostEntries = mostEntries
)

// MaxUnderWay is a limit.
const MaxUnderWay = maxUnderWay
