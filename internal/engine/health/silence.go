package health

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"
)

// ErrSilent ends what waits for the database for longer than others wait for this instance. It counts as a lost connection.
var ErrSilent = fmt.Errorf("the database has not answered for the length of a lease: %w", driver.ErrBadConn)

// Silence ends what waits for a database that does not answer: a connection that was lost without a word would otherwise hold it
// for ever. One goroutine uses it.
type Silence struct {
	limit time.Duration
	timer *time.Timer
}

// NewSilence returns one that ends what waits for so long.
func NewSilence(limit time.Duration) *Silence { return &Silence{limit: limit} }

// Limit runs fn, and ends its context when the limit has passed since it began, or since the last [Silence.Reset].
func (s *Silence) Limit(ctx context.Context, fn func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.timer = time.AfterFunc(s.limit, func() { cancel(ErrSilent) })
	defer s.timer.Stop()
	err := fn(ctx)
	if errors.Is(context.Cause(ctx), ErrSilent) {
		return ErrSilent
	}
	return err
}

// Reset notes that the database has answered. Only what [Silence.Limit] runs calls it.
func (s *Silence) Reset() { s.timer.Reset(s.limit) }
