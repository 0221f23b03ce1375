// Package contain calls code of the user's, so that a panic of it, or a call of runtime.Goexit, is an error of that call only.
package contain

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
	Who   string // has panicked: "handler", say
	Value any    // what it panicked with
	Stack string // where, empty for Goexit
}

func (e *PanicError) Error() string { return fmt.Sprintf("%s panicked: %v", e.Who, e.Value) }

// Call calls code of the user's and answers its error, or a [PanicError] that names who. It calls it in a goroutine of its own, which is
// all that runtime.Goexit ends.
func Call(who string, call func() error) error { return <-Start(who, call) }

// Start is [Call] for whoever does not wait until the end. The channel has the one answer.
func Start(who string, call func() error) <-chan error {
	answer := make(chan error, 1)
	go func() {
		err := error(&PanicError{Who: who, Value: "runtime.Goexit was called"})
		defer func() {
			if v := recover(); v != nil {
				err = &PanicError{Who: who, Value: v, Stack: string(debug.Stack())}
			}
			answer <- err
		}()
		err = call()
	}()
	return answer
}

// Log writes where the call panicked of which err is the answer of [Call], if it did. What such an answer wraps has been written
// before.
func Log(ctx context.Context, to *slog.Logger, err error, attrs ...any) {
	if p, ok := err.(*PanicError); ok { //nolint:errorlint // see above
		to.ErrorContext(ctx, "code of the service panicked", append(attrs, telemetry.Err, text.Error(p),
			telemetry.Stack, text.Clean(p.Stack, text.MaxError))...)
	}
}
