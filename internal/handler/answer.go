package handler

import (
	"errors"
	"fmt"
	"time"
)

// Permanent marks err as hopeless: see bus.Permanent.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err}
}

// IsPermanent reports whether err, or an error it wraps, came from [Permanent].
func IsPermanent(err error) bool {
	var p *permanentError
	return errors.As(err, &p)
}

// RetryAfter asks for another run that does not count this one: see bus.RetryAfter.
func RetryAfter(err error, d time.Duration) error {
	if err == nil {
		return nil
	}
	return &RetryAfterError{err, max(d, 0)}
}

// Unavailable says that the service which the handler calls is away: see bus.Unavailable.
func Unavailable(err error) error {
	if err == nil {
		return nil
	}
	return &UnavailableError{err}
}

type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }

// RetryAfterError is the answer of [RetryAfter].
type RetryAfterError struct {
	err   error
	Delay time.Duration
}

func (e *RetryAfterError) Error() string { return e.err.Error() }
func (e *RetryAfterError) Unwrap() error { return e.err }

// UnavailableError is the answer of [Unavailable].
type UnavailableError struct{ err error }

func (e *UnavailableError) Error() string { return e.err.Error() }
func (e *UnavailableError) Unwrap() error { return e.err }

// AnswersError is the error of a call whose messages were answered one by one: that of each, nil for those that have succeeded. It
// shows none of them as what it wraps, for none is about the others.
type AnswersError []error

// Each returns what the handler has answered to n messages as the error of their call: nil if all have succeeded. Answers that
// are not one for each message fail all of them.
func Each(answers []error, n int) error {
	if len(answers) != n {
		return fmt.Errorf("the handler got %d events and returned %d errors: it has to return one for each, nil for what has succeeded; "+
			"all of them have failed", n, len(answers))
	}
	for _, err := range answers {
		if err != nil {
			return AnswersError(answers)
		}
	}
	return nil
}

func (a AnswersError) Error() string {
	var first error
	failed := 0
	for _, err := range a {
		if err != nil && first == nil {
			first = err
		}
		if err != nil {
			failed++
		}
	}
	return fmt.Sprintf("%d of %d events have failed, the first with: %v", failed, len(a), first)
}

// AnswerTo is the answer to message i of a call that ended with err: its own, if err is or wraps the [AnswersError] to its n messages.
func AnswerTo(err error, i, n int) error {
	var a AnswersError
	if errors.As(err, &a) && len(a) == n {
		return finite(a[i])
	}
	return err
}

// SkipError is the answer that the event does not concern the consumer.
type SkipError struct{ Reason string }

func (e *SkipError) Error() string { return "skipped: " + e.Reason }
