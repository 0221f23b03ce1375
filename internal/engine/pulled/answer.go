package pulled

import (
	"context"
	"errors"
	"time"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/text"
)

// Outcome is what has become of a delivery here.
type Outcome int

// The outcomes.
const (
	Success Outcome = iota
	Skipped
	Failed    // it counts as an attempt
	Permanent // no further attempt would help
	Later     // it is to be run again here, and does not count
)

// Answer is what to say of a delivery.
type Answer struct {
	Outcome Outcome
	Result  []byte // JSON, of a Success; empty for none
	Error   string
	After   time.Duration // of Later
	IsAsked bool          // of Later, by the handler: something else may have to happen first

	isRepeated bool // of Success: an earlier run had the effect
}

// Pauses before a delivery is run again that could not run for reasons which are not its own.
const (
	pauseTrouble     = 200 * time.Millisecond // of this database's transactions
	pauseUnavailable = 2 * time.Second        // of a service or the database
)

// troubleError is a failure of the database, not of the handler: it is not an attempt.
type troubleError struct{ err error }

func (e *troubleError) Error() string { return e.err.Error() }
func (e *troubleError) Unwrap() error { return e.err }

func isTrouble(err error) bool {
	var t *troubleError
	return errors.As(err, &t)
}

// answerTo is what an error makes of its delivery: what does not count as an attempt for a publisher does not count here.
func answerTo(ctx context.Context, err error) Answer {
	a := Answer{Outcome: Failed, Error: text.Error(err)}
	var skip *handler.SkipError
	var later *handler.RetryAfterError
	switch {
	case errors.As(err, &skip):
		a.Outcome, a.Error = Skipped, skip.Reason
	case handler.IsPermanent(err):
		a.Outcome = Permanent
	case ctx.Err() != nil: // the process ends
		a.Outcome, a.After = Later, pauseTrouble
	case errors.As(err, &later):
		a.Outcome, a.After, a.IsAsked = Later, later.Delay, true
	case handler.IsUnreached(err), isTrouble(err) && dialect.IsAway(err):
		a.Outcome, a.After = Later, pauseUnavailable
	case dialect.Classify(err) == dialect.Data:
		a.Outcome = Permanent
	case isTrouble(err):
		a.Outcome, a.After = Later, pauseTrouble
	}
	return a
}
