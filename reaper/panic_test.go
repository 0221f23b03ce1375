package reaper_test

import (
	"bytes"
	"context"
	"log/slog"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/reaper"
)

// A panic, or runtime.Goexit, in what a task brings is an error of that lock, or of that task, and the log says where it was.
func TestOneLockThatPanicsStopsNobody(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		l := newLocks(t, db)
		for _, order := range []string{"1", "guard", "release", "goexit", "z-last"} {
			l.hold("seat-"+order, order, 60)
		}
		task, release := l.task(), l.task().Release
		task.Owner = &reaper.Owner{Guard: func(_ context.Context, _ bun.Tx, a reaper.Aggregate) (bool, error) {
			switch a.ID {
			case "guard":
				panic("the guard fell over")
			case "goexit":
				runtime.Goexit()
			}
			return true, nil
		}}
		task.Release = func(ctx context.Context, tx bun.Tx, k reaper.Lock) (bool, error) {
			done, err := release(ctx, tx, k)
			if k.AggregateID == "release" {
				panic("the release fell over")
			}
			return done, err
		}
		broken := l.task()
		broken.Name = "broken.task"
		broken.Find = func(context.Context, bun.IDB, reaper.Query) ([]reaper.Lock, error) { panic("the search fell over") }
		var said bytes.Buffer
		r, err := reaper.New(db, events{}, reaper.Config{Logger: slog.New(slog.NewTextHandler(&said, nil))}, broken, task)
		require.NoError(t, err)
		report, err := r.RunOnce(t.Context())
		for _, want := range []string{
			"broken.task: it panicked: the search fell over", "lock seat-guard of ORDER guard: it panicked: the guard fell over",
			"lock seat-release of ORDER release: it panicked: the release fell over",
			"lock seat-goexit of ORDER goexit: it panicked: runtime.Goexit",
		} {
			require.ErrorContains(t, err, want)
		}
		require.Equal(t, reaper.Report{Expired: 5, Released: 2, Failed: 3}, report)
		for id, want := range map[string]string{
			"seat-1": "RELEASED", "seat-z-last": "RELEASED", "seat-guard": "FROZEN", "seat-release": "FROZEN",
		} {
			require.Equal(t, want, l.status(id), id)
		}
		require.Contains(t, said.String(), "panic_test.go:", "the stack")
		require.Equal(t, 4, strings.Count(said.String(), "code of the service panicked"), "each once")
	})
}
