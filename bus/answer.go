package bus

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Permanent marks err as hopeless: the delivery becomes DEAD at once.
// Permanent(nil) is nil.
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

// RetryAfter asks for another run after d, and does not count this one as a failure. When the delivery is as old
// as its consumer's MaxAge, it is DEAD all the same.
// RetryAfter(nil, d) is nil.
func RetryAfter(err error, d time.Duration) error {
	if err == nil {
		return nil
	}
	return &retryAfterError{err, max(d, 0)}
}

// Unavailable says that the service which the handler calls is away: an HTTP 503, say. The run does not count as an attempt, and
// the circuit of the consumer opens: in this process it pauses for a second, and longer while the service stays away. Errors
// that say so by themselves (connection refused, no such host) need no Unavailable.
// Unavailable(nil) is nil.
func Unavailable(err error) error {
	if err == nil {
		return nil
	}
	return &unavailableError{err}
}

// Skip ends the delivery as SKIPPED with a reason: the consumer has decided
// that this event does not concern it. What the handler wrote is rolled back. Without a reason nobody could tell later
// why the event had no effect: the delivery becomes DEAD instead.
func Skip(reason string) error {
	if strings.TrimSpace(reason) == "" {
		return Permanent(errors.New(`bus.Skip needs a reason, such as bus.Skip("a test order"): nothing was skipped`))
	}
	return &skipError{reason}
}

type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }

type retryAfterError struct {
	err   error
	delay time.Duration
}

func (e *retryAfterError) Error() string { return e.err.Error() }
func (e *retryAfterError) Unwrap() error { return e.err }

type unavailableError struct{ err error }

func (e *unavailableError) Error() string { return e.err.Error() }
func (e *unavailableError) Unwrap() error { return e.err }

type skipError struct{ reason string }

func (e *skipError) Error() string { return "skipped: " + e.reason }

// PanicError is the failure of a handler that panicked or called runtime.Goexit.
type PanicError struct {
	Value any    // what it panicked with
	Stack string // where, empty for Goexit
}

func (e *PanicError) Error() string { return fmt.Sprintf("handler panicked: %v", e.Value) }
