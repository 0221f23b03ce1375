package crash_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/invariant"
	"github.com/bluecone-go/bluecone/migrations"
)

// Everything may happen at every point. `make test` takes a sample, `make test-crash` all of it.
const (
	envAll = "BLUECONE_TEST_CRASH" // "all"
	sample = 48                    // one of so many
)

func actions() []string { return []string{"kill", "freeze", "cut"} }

// A process that is killed, or cut off from its database, or frozen until others have taken over and
// then goes on, loses nothing, doubles nothing and overtakes nothing, wherever it was.
func TestEveryPointSurvives(t *testing.T) {
	t.Parallel()
	all := os.Getenv(envAll) == "all"
	results := newMatrix()
	for _, dialect := range testdb.Servers() {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			points := always(discover(t, dialect), discover(t, dialect))
			require.Greater(t, len(points), 100)
			for _, point := range points {
				for _, action := range actions() {
					if !all && pick(dialect+action+point) != 0 {
						continue
					}
					t.Run(action+" "+point, func(t *testing.T) {
						t.Parallel()
						results.began(dialect, point, action)
						survive(t, dialect, action, point)
						results.passed(dialect, point, action)
					})
				}
			}
		})
	}
	t.Cleanup(func() { results.publish(t) })
}

func pick(name string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name)) // never fails
	return h.Sum32() % sample
}

// discover lets a process live without a fault, and answers the points it came by.
func discover(t *testing.T, dialect string) (points []string) {
	t.Helper()
	p := start(t, dialect, "", "")
	require.NoError(t, p.cmd.Wait(), p.complaint())
	for line := range strings.Lines(p.said()) {
		if point, ok := strings.CutPrefix(strings.TrimSpace(line), "point "); ok {
			points = append(points, point)
		}
	}
	judge(t, p)
	return points
}

// always keeps the points that both lives came by: some depend on who is faster.
func always(points, others []string) []string {
	return slices.DeleteFunc(points, func(p string) bool { return !slices.Contains(others, p) })
}

// survive lets processes live until one has met its fault. Some points are those of a timer, and a life may end before it.
func survive(t *testing.T, dialect, action, point string) {
	t.Helper()
	for range 20 {
		if meet(t, dialect, action, point) {
			return
		}
	}
	require.Fail(t, "no process comes to the point")
}

// meet lets a process live, and reports whether it has come to the point.
func meet(t *testing.T, dialect, action, point string) bool {
	t.Helper()
	p := start(t, dialect, action, point)
	ended := make(chan error, 1)
	go func() { ended <- p.cmd.Wait() }()
	if action == "freeze" {
		require.Eventually(t, func() bool {
			return len(ended) > 0 || stopped(p.cmd.Process.Pid)
		}, time.Minute, 5*time.Millisecond, "it comes to the point: %s", p.complaint())
		if len(ended) == 0 {
			if !strings.HasPrefix(point, "migrations/") { // whoever migrates is waited for
				judge(t, p)
			}
			require.NoError(t, p.cmd.Process.Signal(syscall.SIGCONT))
		}
	}
	reached := false
	select {
	case err := <-ended:
		reached = strings.Contains(p.said(), "reached")
		if action == "kill" && reached {
			require.ErrorContains(t, err, "killed", "%s", p.complaint())
		}
	case <-time.After(6 * time.Minute):
		require.Fail(t, "the process does not come to its end", p.complaint())
	}
	judge(t, p)
	clean(t, p) // not earlier: nobody is frozen for as long as delivered events are kept
	judge(t, p)
	return reached
}

// clean lets the retention end what it may have begun.
func clean(t *testing.T, p *process) {
	t.Helper()
	i, err := newInstance(p.db)
	require.NoError(t, err)
	require.NoError(t, i.age(t.Context()))
	_, err = i.retention.RunOnce(t.Context())
	require.NoError(t, err)
}

// process is one life.
type process struct {
	cmd       *exec.Cmd
	db        *bun.DB // the parent's own way to the same database
	out, errs *os.File
	t         *testing.T
}

func start(t *testing.T, dialect, action, point string) *process {
	t.Helper()
	dsn := testdb.DSN(t, dialect)
	p := &process{db: testdb.OpenDSN(t, dsn), out: file(t), errs: file(t), t: t}
	require.NoError(t, tables(t.Context(), p.db))
	self, err := os.Executable()
	require.NoError(t, err)
	p.cmd = exec.Command(self)
	p.cmd.Env = append(os.Environ(), envDSN+"="+dsn, envPoint+"="+point, envAction+"="+action)
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.errs
	require.NoError(t, p.cmd.Start())
	t.Cleanup(func() { _ = p.cmd.Process.Kill() })
	return p
}

func (p *process) said() string      { return read(p.t, p.out) }
func (p *process) complaint() string { return read(p.t, p.errs) }

// judge lets another instance do all there is to do, as if every lease had run out, and looks at what
// came of it.
func judge(t *testing.T, p *process) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testdb.Patience())
	defer cancel()
	for {
		err := finish(ctx, p.db)
		if err == nil {
			break
		}
		require.NoError(t, ctx.Err(), "another instance finishes everything: %v\n%s", err, p.complaint())
	}
	var business, committed []string
	require.NoError(t, p.db.NewRaw("SELECT event_id FROM business").Scan(ctx, &business))
	for line := range strings.Lines(p.said()) {
		if id, ok := strings.CutPrefix(strings.TrimSpace(line), "committed "); ok {
			committed = append(committed, id)
		}
	}
	require.Subset(t, business, committed)
	found, err := invariant.Check(ctx, p.db, invariant.Config{
		Quiet: true, Effects: invariant.Effects{Table: "effect"}, History: invariant.History{Committed: business},
	})
	require.NoError(t, err)
	require.Empty(t, found, p.complaint())
	count := func(query string) (n int) {
		require.NoError(t, p.db.NewRaw(query).Scan(ctx, &n))
		return n
	}
	require.Len(t, business, count("SELECT (SELECT COUNT(*) FROM bc_outbox_event) + (SELECT COUNT(*) FROM bc_outbox_event_archive)"),
		"no event without its business row")
	require.Equal(t, 2, count("SELECT SUM(releases) FROM reservation"), "every lock is released once")
}

// finish is the life of the instance that is left.
func finish(ctx context.Context, db *bun.DB) error {
	if err := migrations.Up(ctx, db); err != nil {
		return err
	}
	i, err := newInstance(db)
	if err != nil {
		return err
	}
	if err := i.expire(ctx); err != nil {
		return err
	}
	_, err1 := i.reaper.RunOnce(ctx)
	_, err2 := i.consistency.RunOnce(ctx)
	if err := errors.Join(err1, err2, i.retry(ctx), i.operate(ctx), i.retry(ctx)); err != nil {
		return err
	}
	var open int
	err = db.NewRaw("SELECT COUNT(*) FROM bc_outbox_event WHERE status <> 'SENT'").Scan(ctx, &open)
	if err == nil && open > 0 {
		err = fmt.Errorf("%d events are open", open)
	}
	return err
}

// file is one for what the child says.
func file(t *testing.T) *os.File {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "said")
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func read(t *testing.T, f *os.File) string {
	t.Helper()
	text, err := os.ReadFile(f.Name())
	require.NoError(t, err)
	return string(text)
}

// stopped tells whether the process is frozen.
func stopped(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	_, rest, ok := strings.Cut(string(stat), ") ")
	return ok && strings.HasPrefix(rest, "T")
}
