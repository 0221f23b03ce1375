package ops_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"

	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/ops"
	"github.com/bluecone-go/bluecone/outbox"
)

// health is what a probe is told.
type health struct {
	Status string
	Checks []struct {
		Name string
		OK   bool
		Says string
	}
	code int
	body string
}

// failing names the checks that are not ok.
func (h health) failing() []string {
	names := []string{}
	for _, c := range h.Checks {
		if !c.OK {
			names = append(names, c.Name)
		}
	}
	return names
}

func probe(t *testing.T, h http.Handler, path string) health {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
	got := health{code: w.Code, body: w.Body.String()}
	require.Equal(t, "application/json", w.Header().Get("Content-Type"), got.body)
	require.Equal(t, "no-store", w.Header().Get("Cache-Control"))
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &got))
	return got
}

// eventuallyReady asks until the answer is as it should be. Answers are shared for a second, so a change is not seen at once.
func eventuallyReady(t *testing.T, h http.Handler, code int) health {
	t.Helper()
	var got health
	require.Eventually(t, func() bool { got = probe(t, h, "/readyz"); return got.code == code }, testdb.Patience(), 20*time.Millisecond)
	return got
}

// A process is ready if its database answers, its tables fit, and a publisher takes events as soon as one has been told to run.
func TestReadyIsWhatCanWork(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db, ops.Config{Timeout: time.Minute}).consumers()
		h := ops.Health(f.ops)
		got := probe(t, h, "/readyz")
		require.Equal(t, http.StatusOK, got.code, "no publisher is expected: %s", got.body)
		require.Equal(t, "ready", got.Status)
		require.Len(t, got.Checks, 3)

		p, err := outbox.NewPublisher(f.ob, f.bus, outbox.PublisherConfig{})
		require.NoError(t, err)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- p.Run(ctx) }()
		require.Eventually(t, func() bool { running, _ := f.ob.Publishing(); return running }, testdb.Patience(), time.Millisecond)
		require.Equal(t, http.StatusOK, probe(t, h, "/readyz").code)
		stop()
		require.NoError(t, <-ended)
		got = probe(t, h, "/readyz")
		require.Equal(t, http.StatusServiceUnavailable, got.code)
		require.Equal(t, []string{"publisher"}, got.failing(), "it has ended")
		require.Equal(t, "not ready", got.Status)
		live := probe(t, h, "/livez")
		require.Equal(t, http.StatusOK, live.code, "the process lives all the same")
		require.Equal(t, "live", live.Status)
	})
}

// Tables of another release are not ready, and the answer names the first of them and says what to do, but quotes no database.
func TestTablesOfAnotherReleaseAreNotReady(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db, ops.Config{Timeout: time.Minute})
		h := ops.Health(f.ops)
		require.Equal(t, http.StatusOK, probe(t, h, "/readyz").code)
		f.exec("ALTER TABLE bc_event_key RENAME TO bc_lost")
		got := eventuallyReady(t, h, http.StatusServiceUnavailable)
		require.Equal(t, []string{"tables"}, got.failing())
		require.Equal(t, "bc_event_key is not as this release needs it: run migrations.Up of this release.", got.Checks[1].Says)
		f.exec("ALTER TABLE bc_lost RENAME TO bc_event_key")
		eventuallyReady(t, h, http.StatusOK)
	})
}

// A database that does not answer holds nobody for longer than the timeout, and however many probes come, one waits for it.
func TestSlowDatabasePilesUpNoProbes(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		const timeout = 300 * time.Millisecond
		f := newFixture(t, db, ops.Config{Timeout: timeout})
		h := ops.Health(f.ops)
		db.SetMaxOpenConns(1)
		conn, err := db.Conn(t.Context()) // the only connection is busy
		require.NoError(t, err)
		before, began := db.Stats().WaitCount, time.Now()
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				for range 5 {
					w := httptest.NewRecorder()
					h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/readyz", nil))
					assert.Equal(t, http.StatusServiceUnavailable, w.Code)
					assert.Contains(t, w.Body.String(), `{"name":"database","ok":false,`)
				}
			})
		}
		wg.Wait()
		// Each look takes the timeout, and the next one begins a second after its end.
		most := int64(time.Since(began)/(timeout+time.Second)) + 1
		require.LessOrEqual(t, db.Stats().WaitCount-before, most, "500 probes, and one look at a time")
		require.Equal(t, http.StatusOK, probe(t, h, "/livez").code)
		require.NoError(t, conn.Close())
		eventuallyReady(t, h, http.StatusOK)
	})
}

// What the database or its driver says may name hosts, users and passwords: it is logged, never answered.
func TestProbesShowNoSecrets(t *testing.T) {
	t.Parallel()
	pool, err := sql.Open("pgx", "postgres://bob:sesame@127.0.0.1:1/treasure?connect_timeout=1")
	require.NoError(t, err)
	db := bun.NewDB(pool, pgdialect.New())
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	ob, err := outbox.New(db, outbox.Config{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	log := &logged{}
	o, err := ops.New(db, ob, ops.Config{Logger: slog.New(slog.NewTextHandler(log, nil)), Timeout: time.Minute})
	require.NoError(t, err)
	h := ops.Health(o)
	got := probe(t, h, "/readyz")
	require.Equal(t, http.StatusServiceUnavailable, got.code)
	for _, secret := range []string{"bob", "sesame", "127.0.0.1", "treasure"} {
		require.NotContains(t, got.body, secret)
	}
	probe(t, h, "/readyz")
	require.Equal(t, 1, log.count("this process is not ready"), "once, however many ask")
	require.NotZero(t, log.count("127.0.0.1"), "with the reason")
	require.Zero(t, log.count("sesame"))
}

// Only GET and HEAD of the two paths are answered.
func TestProbesAreTwoPaths(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testdb.Open(t, "sqlite"), ops.Config{})
	h := ops.Health(f.ops)
	for path, code := range map[string]int{
		"GET /": 404, "GET /livez/": 404, "POST /livez": 405, "POST /readyz": 405, "HEAD /livez": 200, "HEAD /readyz": 200,
	} {
		method, target, _ := strings.Cut(path, " ")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, target, nil))
		require.Equal(t, code, w.Code, path)
	}
}

// logged is what was logged.
type logged struct {
	mu  sync.Mutex
	all strings.Builder
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(p)
}

func (l *logged) count(s string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.all.String(), s)
}
