package enroll_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/engine/enroll"
	"github.com/bluecone-go/bluecone/internal/engine/registry"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

const (
	isAway = "the database does not answer as it should"
	isBack = "the database answers again"
)

// Enroll writes the consumers into the registry, each with its event types, and a replayable one a second time for its replays. A
// consumer that wants the past gets a backfill, once. Then the roster knows all of them.
func TestEnrollRegistersTheConsumers(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		consumers := []*handler.Consumer{
			consumer("Plain", handler.Config{}, "b", "a"), consumer("Late", handler.Config{StartFrom: time.UnixMicro(1)}, "a"),
			consumer("Again", handler.Config{Replayable: true}, "a"),
		}
		for range 2 { // the second time it renews that they are alive
			i := newInstance(t, db, consumers...)
			require.NoError(t, i.enroll(t.Context()))
			require.Equal(t, consumers, i.Consumers())
			all, _ := i.roster.Last()
			require.Equal(t, []registry.Consumer{
				{Key: "Again", Types: []string{"a"}},
				{Key: store.ReplayName("Again")},
				{Key: "Late", Types: []string{"a"}, IsFilled: true},
				{Key: "Plain", Types: []string{"a", "b"}},
			}, sorted(all.Consumers))
			require.Empty(t, all.Elsewhere, "all of them are here")
			require.Equal(t, 1, testdb.Count(t, db, "SELECT COUNT(*) FROM bc_bulk_operation WHERE consumer_name = 'Late'"))
			require.Empty(t, i.log.String())
		}
		require.Equal(t, 1, testdb.Count(t, db, "SELECT COUNT(*) FROM bc_consumer WHERE name = 'Again' AND replayable = 1"))
	})
}

// sorted puts consumers in the order of their keys in Go, and so their types: databases have orders of their own.
func sorted(all []registry.Consumer) []registry.Consumer {
	all = slices.Clone(all)
	for i := range all {
		all[i].Types = slices.Sorted(slices.Values(all[i].Types))
	}
	slices.SortFunc(all, func(a, b registry.Consumer) int { return strings.Compare(a.Key, b.Key) })
	return all
}

// Whichever statement meets an outage, Enroll tries again until all is written. It says once that the database is away, and once that
// it is back.
func TestEnrollWaitsForTheDatabase(t *testing.T) {
	t.Parallel()
	dsn := testdb.File(t)
	tried := 0
	for failing := 1; tried == failing-1; failing++ {
		synctest.Test(t, func(t *testing.T) {
			var f testdb.Faults
			f.FailOnce(failing, io.ErrUnexpectedEOF)
			i := newInstance(t, f.Connect(t, dsn), consumer("C", handler.Config{}, "a"))
			require.NoError(t, i.enroll(t.Context()))
			all, _ := i.roster.Last()
			require.Len(t, all.Consumers, 1)
			if f.Sent() < failing { // no statement was left to fail
				require.Empty(t, i.log.String())
				return
			}
			tried = failing
			require.Equal(t, 1, strings.Count(i.log.String(), isAway), i.log)
			require.Equal(t, 1, strings.Count(i.log.String(), isBack), i.log)
		})
	}
	require.Greater(t, tried, 5, "the tables, the consumers, their types, the roster")
}

// An enrollment whose context ends during an outage ends.
func TestEnrollEndsWithItsContext(t *testing.T) {
	t.Parallel()
	dsn := testdb.File(t)
	synctest.Test(t, func(t *testing.T) {
		var f testdb.Faults
		f.Fail(io.ErrUnexpectedEOF)
		i := newInstance(t, f.Connect(t, dsn), consumer("C", handler.Config{}, "a"))
		ctx, end := context.WithTimeout(t.Context(), time.Hour)
		defer end()
		require.ErrorIs(t, i.enroll(ctx), context.DeadlineExceeded)
		require.Equal(t, 1, strings.Count(i.log.String(), isAway), "it has tried for an hour")
	})
}

// Tables of another release, or a session that reads texts otherwise, are no outage: Enroll returns the error at once.
func TestEnrollDoesNotWaitForAnotherRelease(t *testing.T) {
	t.Parallel()
	i := newInstance(t, testdb.Open(t, "sqlite", testdb.Bare), consumer("C", handler.Config{}, "a"))
	require.ErrorAs(t, i.enroll(t.Context()), new(*store.TablesError))
	require.Empty(t, i.log.String())

	var f testdb.Faults
	f.Fail(dialect.ErrQuoting)
	i = newInstance(t, f.Connect(t, testdb.File(t)))
	require.ErrorIs(t, i.enroll(t.Context()), dialect.ErrQuoting)
	require.Empty(t, i.log.String())
}

// An error of the registry names the consumers that could not be registered.
func TestRegisterNamesTheConsumers(t *testing.T) {
	t.Parallel()
	i := newInstance(t, testdb.Open(t, "sqlite", testdb.Bare), consumer("B", handler.Config{}, "b"), consumer("A", handler.Config{}, "a", "b"))
	require.ErrorContains(t, i.Register(t.Context()), "outbox: register consumers A(a b), B(b): ")
}

// Every 30 seconds the consumers are registered again. When that fails it is said, and the next time tries again.
func TestKeepAliveRegistersAgain(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(stop chan struct{}, end context.CancelFunc){
		"until it is stopped":    func(stop chan struct{}, _ context.CancelFunc) { close(stop) },
		"until its context ends": func(_ chan struct{}, end context.CancelFunc) { end() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := testdb.File(t)
			synctest.Test(t, func(t *testing.T) {
				var f testdb.Faults
				i := newInstance(t, f.Connect(t, dsn), consumer("C", handler.Config{}, "a"))
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				stop, ended := make(chan struct{}), make(chan struct{})
				go func() {
					defer close(ended)
					i.KeepAlive(ctx, stop)
				}()
				pass := func(seconds int) {
					<-time.After(time.Duration(seconds) * time.Second)
					synctest.Wait()
				}
				pass(29)
				require.Zero(t, f.Sent())
				pass(2)
				require.Equal(t, 1, testdb.Count(t, i.db, "SELECT COUNT(*) FROM bc_consumer_type WHERE consumer_name = 'C'"))
				require.Empty(t, i.log.String())

				_, err := i.db.ExecContext(ctx, "DELETE FROM bc_consumer_type")
				require.NoError(t, err)
				f.Fail(errors.New("no statement today"))
				pass(30)
				require.Equal(t, 1, strings.Count(i.log.String(), "level=WARN msg=\"consumers could not be announced"), i.log)
				f.Fail(nil)
				pass(30)
				require.Equal(t, 1, testdb.Count(t, i.db, "SELECT COUNT(*) FROM bc_consumer_type WHERE consumer_name = 'C'"))

				end(stop, cancel)
				<-ended
				before := f.Sent()
				pass(60)
				require.Equal(t, before, f.Sent())
			})
		})
	}
}

// A log line names no more than 20 consumers.
func TestDescribeNamesTheFirstConsumers(t *testing.T) {
	t.Parallel()
	require.Empty(t, enroll.Describe(nil))
	all := []*handler.Consumer{consumer("A", handler.Config{}, "b", "a"), consumer("B", handler.Config{})}
	require.Equal(t, "A(a b), B()", enroll.Describe(all))
	for n := range 19 {
		all = append(all, consumer(fmt.Sprint("C", n), handler.Config{}, "c"))
	}
	require.Contains(t, enroll.Describe(all[:20]), ", C17(c)")
	require.NotContains(t, enroll.Describe(all[:20]), "more")
	require.Contains(t, enroll.Describe(all), ", C17(c), and 1 more")
}

func TestTypesOfConsumers(t *testing.T) {
	t.Parallel()
	require.Equal(t, map[string][]string{"A": {"a", "b"}, "B": {}}, enroll.TypesOf([]*handler.Consumer{
		consumer("A", handler.Config{}, "b", "a"), consumer("B", handler.Config{}),
	}))
}

// Once the tables were seen to be those of this release, nobody looks again; before, each call looks.
func TestTablesAreLookedAtUntilTheyAreSeen(t *testing.T) {
	t.Parallel()
	var f testdb.Faults
	f.Fail(io.ErrUnexpectedEOF)
	i := newInstance(t, f.Connect(t, testdb.File(t)))
	for range 2 {
		before := f.Sent()
		require.ErrorIs(t, i.tables.Check(t.Context()), io.ErrUnexpectedEOF)
		require.Greater(t, f.Sent(), before)
	}
	f.Fail(nil)
	require.NoError(t, i.tables.Check(t.Context()))
	before := f.Sent()
	require.NoError(t, i.tables.Check(t.Context()))
	require.Equal(t, before, f.Sent())
}
