package contain_test

import (
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/contain"
)

// A call ends as its code says: by its error, or by one that says who panicked, and where.
func TestCallsAreContained(t *testing.T) {
	t.Parallel()
	cause := errors.New("no")
	require.NoError(t, contain.Call("it", func() error { return nil }))
	require.Equal(t, cause, contain.Call("it", func() error { return cause }))
	var p *contain.PanicError
	require.ErrorAs(t, contain.Call("the sink", func() error { panic("oh") }), &p)
	require.EqualError(t, p, "the sink panicked: oh")
	require.Contains(t, p.Stack, "contain_test.go")
	require.ErrorAs(t, <-contain.Start("it", func() error { runtime.Goexit(); return nil }), &p)
	require.EqualError(t, p, "it panicked: runtime.Goexit was called")
	require.Empty(t, p.Stack)
}

// The log has the place of a panic, and nothing of other errors.
func TestPanicsAreLoggedWithTheirPlace(t *testing.T) {
	t.Parallel()
	log := new(strings.Builder)
	to := slog.New(slog.NewTextHandler(log, nil))
	contain.Log(t.Context(), to, nil)
	contain.Log(t.Context(), to, errors.New("no"))
	require.Empty(t, log.String())
	contain.Log(t.Context(), to, contain.Call("it", func() error { panic("oh") }), "lock", "seat")
	require.Contains(t, log.String(), "it panicked: oh")
	require.Contains(t, log.String(), "contain_test.go")
	require.Contains(t, log.String(), "lock=seat")
}
