package ledger

import (
	"context"
	"net/http"
)

// AskDue asks the producers of reservations that are due now, by a client of the test's.
func (s *Server) AskDue(ctx context.Context, client *http.Client) error {
	return s.reserving.askDue(ctx, client)
}
