package ledger

import (
	"context"
	"errors"
	"fmt"
	"regexp"

	"github.com/bluecone-go/bluecone/internal/spi"
	"github.com/bluecone-go/bluecone/outbox"
)

// Reserved is an event that a [Producer] has reserved.
type Reserved struct {
	Token   string // of the reservation
	EventID string
}

// ErrEnded means that a reservation has ended: the ledger was told that its transaction does not commit, so this one must not.
var ErrEnded = errors.New("the reservation has ended: roll the transaction back")

// tokens that are no others are part of a statement.
var plainToken = regexp.MustCompile(`^[0-9A-Za-z_-]{16,64}$`)

// Prepare writes a barrier row into the transaction that a reserved event is about: it says that the event is to be confirmed if, and
// only if, this transaction commits. Any transaction of the [Producer]'s database will do; on PostgreSQL a failed Prepare, as any
// statement that fails, ends it. It returns [ErrEnded] if the ledger has asked before, or if the event was prepared before.
func Prepare(ctx context.Context, tx outbox.Tx, event *Reserved) error {
	switch {
	case event == nil || !plainToken.MatchString(event.Token):
		return errors.New("ledger.Prepare: the event is not reserved: take the one that Producer.Reserve returned")
	case tx == nil:
		return errors.New("ledger.Prepare: tx is nil: begin a transaction first")
	}
	first, err := spi.Commits(ctx, tx, event.Token)
	switch {
	case err != nil:
		return fmt.Errorf("ledger.Prepare: event %s: %w", event.EventID, err)
	case !first:
		return fmt.Errorf("ledger.Prepare: event %s: %w", event.EventID, ErrEnded)
	}
	return nil
}
