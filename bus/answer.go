package bus

import (
	"errors"
	"strings"
	"time"

	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/text"
)

// Permanent marks err as hopeless: the delivery becomes DEAD at once.
// Permanent(nil) is nil.
func Permanent(err error) error { return handler.Permanent(err) }

// IsPermanent reports whether err, or an error it wraps, came from [Permanent].
func IsPermanent(err error) bool { return handler.IsPermanent(err) }

// RetryAfter asks for another run after d, and does not count this one as a failure. When the delivery is as old
// as its consumer's MaxAge, it runs for the last time, even if that is before d is over, and is DEAD if it fails. A negative d is 0.
// RetryAfter(nil, d) is nil.
func RetryAfter(err error, d time.Duration) error { return handler.RetryAfter(err, d) }

// Unavailable says that the service which the handler calls is away: an HTTP 503, say. The run does not count as an attempt, and
// the circuit of the consumer opens: in this process nothing of it starts for a second, and for longer while the service stays
// away. Errors that say so by themselves (connection refused, no such host) need no Unavailable.
// Unavailable(nil) is nil.
func Unavailable(err error) error { return handler.Unavailable(err) }

// Skip ends the delivery as SKIPPED with a reason: the consumer has decided
// that this event does not concern it. What the handler wrote is rolled back. Without a reason nobody could tell later
// why the event had no effect: the delivery becomes DEAD instead.
func Skip(reason string) error {
	if strings.TrimSpace(text.Clean(reason, text.MaxError)) == "" { // as it would be stored
		return Permanent(errors.New(`bus.Skip needs a reason, such as bus.Skip("a test order"): nothing was skipped`))
	}
	return &handler.SkipError{Reason: reason}
}

// Backoff is how long a delivery waits after its failed attempt number n (from 1):
// 2^n seconds, at most 10 minutes, of which a random part between half and the whole.
func Backoff(n int) time.Duration { return handler.Backoff(n) }
