package schedule

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"

	"github.com/bluecone-go/bluecone/internal/telemetry"
	"github.com/bluecone-go/bluecone/internal/text"
)

// PanicError says that code of the user's has panicked, or called runtime.Goexit.
type PanicError struct {
	Value any
	Stack string // where, empty for Goexit
}

func (e *PanicError) Error() string { return fmt.Sprintf("it panicked: %v", e.Value) }

// Contain calls code of the user's for one of many things, so that a panic is an error of that one. It calls it in a goroutine of its
// own, which is all that runtime.Goexit ends.
func Contain(call func() error) error {
	answer := make(chan error, 1)
	go func() {
		err := error(&PanicError{Value: "runtime.Goexit was called"})
		defer func() {
			if v := recover(); v != nil {
				err = &PanicError{Value: v, Stack: string(debug.Stack())}
			}
			answer <- err
		}()
		err = call()
	}()
	return <-answer
}

// LogPanic writes where the call panicked of which err is the answer of [Contain], if it did. What such an answer wraps has been
// written before.
func LogPanic(ctx context.Context, to *slog.Logger, err error, attrs ...any) {
	if p, ok := err.(*PanicError); ok { //nolint:errorlint // see above
		to.ErrorContext(ctx, "code of the service panicked", append(attrs, telemetry.Err, text.Error(p),
			telemetry.Stack, text.Clean(p.Stack, text.MaxError))...)
	}
}
