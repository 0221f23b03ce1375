package handler_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

var errNo = errors.New("no")

// Each message of a call gets the answer that was its own, also when middleware wraps the error; any other error is about all of them.
func TestEachMessageGetsItsOwnAnswer(t *testing.T) {
	t.Parallel()
	require.NoError(t, handler.Each([]error{nil, nil}, 2))
	few := handler.Each([]error{errNo}, 2)
	require.ErrorContains(t, few, "got 2 events and returned 1 errors")
	require.Equal(t, few, handler.AnswerTo(few, 1, 2), "all have failed")

	err := handler.Each([]error{nil, errNo, handler.Permanent(io.EOF)}, 3)
	require.EqualError(t, err, "2 of 3 events have failed, the first with: no")
	require.NotErrorIs(t, err, errNo, "it is about one of them")
	wrapped := fmt.Errorf("middleware: %w", err)
	require.NoError(t, handler.AnswerTo(wrapped, 0, 3))
	require.Equal(t, errNo, handler.AnswerTo(wrapped, 1, 3))
	require.True(t, handler.IsPermanent(handler.AnswerTo(wrapped, 2, 3)))
	require.Equal(t, wrapped, handler.AnswerTo(wrapped, 0, 4), "of another call")
}

// An error says that the other side was not reached if it says so itself, or if the handler does.
func TestErrorsSayThatTheOtherSideWasNotReached(t *testing.T) {
	t.Parallel()
	for _, err := range []error{
		handler.Unavailable(errNo), &net.DNSError{Err: "no such host"}, &net.OpError{Op: "dial", Err: errNo}, syscall.ECONNREFUSED,
		fmt.Errorf("read: %w", io.ErrUnexpectedEOF), fmt.Errorf("write: %w", syscall.EPIPE),
	} {
		require.True(t, handler.IsUnreached(err), "%v", err)
	}
	for _, err := range []error{errNo, io.EOF, context.DeadlineExceeded, handler.RetryAfter(syscall.ECONNREFUSED, time.Second)} {
		require.False(t, handler.IsUnreached(err), "%v", err)
	}
}

// Events share a call or a transaction if their handlers can take them together.
func TestHandlersSayWhatMayBeInOneBatch(t *testing.T) {
	t.Parallel()
	all, _ := registrations(t)
	c := handler.NewConsumer(all, "C", "C", handler.Config{})
	for eventType, of := range map[string]struct {
		isExternal, isBatch bool
		group               any
	}{
		"a": {}, "b": {isBatch: true}, "out": {isExternal: true}, "many": {isExternal: true, isBatch: true},
		"relay.a": {isExternal: true, isBatch: true, group: "relay"}, "relay.b": {isExternal: true, isBatch: true, group: "relay"},
	} {
		h := handlerOf(eventType, nil)
		h.External, h.Batch, h.Group = of.isExternal, of.isBatch, of.group
		c.Add(h)
	}
	for _, pair := range [][2]string{{"a", "b"}, {"a", "unknown"}, {"many", "many"}, {"relay.a", "relay.b"}} {
		require.True(t, c.Joins(pair[0], pair[1]), pair)
		require.True(t, c.Joins(pair[1], pair[0]), pair)
	}
	for _, pair := range [][2]string{{"a", "out"}, {"out", "out"}, {"many", "relay.a"}, {"b", "many"}} {
		require.False(t, c.Joins(pair[0], pair[1]), pair)
		require.False(t, c.Joins(pair[1], pair[0]), pair)
	}
	require.True(t, c.IsExternalBatch("many"))
	require.False(t, c.IsExternalBatch("out") || c.IsExternalBatch("b") || c.IsExternalBatch("unknown"))
}

type versioned struct{ version int }

func (v versioned) SchemaVersion() int { return v.version }

// Registrations know what nobody consumes, what came too late, and on which pool they work.
func TestRegistrationsKnowWhatWasRegistered(t *testing.T) {
	t.Parallel()
	all, _ := registrations(t)
	all.Unconsumed["log.written"] = struct{}{}
	require.True(t, all.Ignores("log.written"))
	require.False(t, all.Ignores("order.paid"))
	for _, name := range []string{"B", "A"} {
		all.Consumers = append(all.Consumers, handler.NewConsumer(all, name, "key of "+name, handler.Config{}))
	}
	require.Equal(t, []string{"A", "B"}, []string{all.ByName()[0].Name, all.ByName()[1].Name})
	require.False(t, all.HasLate())
	all.Late = true
	require.True(t, all.HasLate())
	db := testdb.Open(t, "sqlite")
	require.True(t, all.WorksIn(db), "they have none yet, which is said elsewhere")
	all.DB = db
	require.True(t, all.WorksIn(db))
	require.False(t, all.WorksIn(testdb.Open(t, "sqlite")))
	require.Equal(t, []int{1, 1, 3}, []int{handler.VersionOf(versioned{}), handler.VersionOf("plain"), handler.VersionOf(versioned{3})})
}
