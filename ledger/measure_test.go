package ledger_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/ledger"
	"github.com/bluecone-go/bluecone/outbox"
)

// processor is what this process has used of the processors.
func processor(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// idleCallers stands in the environment of a process that only calls a ledger.
const idleCallers = "BLUECONE_TEST_IDLE_CALLERS"

// 2,000 calls of Fetch wait, over HTTP, and are repeated when their minute is over. The clients are a process of their own.
func TestMeasureIdleFetches(t *testing.T) { //nolint:paralleltest // it measures
	calls := testdb.MeasuresWith(t, 2000)
	for _, name := range testdb.Dialects() { //nolint:paralleltest // likewise
		t.Run(name, func(t *testing.T) {
			db, quiet := testdb.Open(t, name), slog.New(slog.DiscardHandler)
			ob, err := outbox.New(db, outbox.Config{Logger: quiet})
			require.NoError(t, err)
			s, err := ledger.New(db, ob, ledger.Config{Authorizer: ledger.Anybody, Logger: quiet})
			require.NoError(t, err)
			server := httptest.NewServer(s)
			defer server.Close()
			defer server.CloseClientConnections()
			testdb.Run(t, s)
			self, err := os.Executable()
			require.NoError(t, err)
			callers := exec.CommandContext(t.Context(), self, server.URL, strconv.Itoa(calls))
			callers.Env = append(os.Environ(), idleCallers+"=1")
			require.NoError(t, callers.Start())
			defer func() { _, _ = callers.Process.Kill(), callers.Wait() }()
			testdb.Eventually(t, func() bool { return s.Waiting() == calls }, "all wait")
			const long = 65 * time.Second  // each call is repeated once
			<-time.After(10 * time.Second) // the first looks are over
			began, used, open := time.Now(), processor(t), 0
			for time.Since(began) < long {
				open = max(open, db.Stats().InUse)
				<-time.After(100 * time.Millisecond)
			}
			t.Logf("| %s | %d | %.1f %% of a core | %d |", name, calls, 100*float64(processor(t)-used)/float64(time.Since(began)), open)
		})
	}
}

// liveAsCallers calls the ledger at a URL from so many goroutines, until the process is killed.
func liveAsCallers(ctx context.Context, url, number string) error {
	calls, err := strconv.Atoi(number)
	if err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: calls}}
	var all sync.WaitGroup
	for n := range calls {
		all.Go(func() { fetchForEver(ctx, client, url, n%50) })
	}
	all.Wait()
	return nil
}

func fetchForEver(ctx context.Context, client *http.Client, url string, n int) {
	body := fmt.Sprintf(`{"consumer":"C%d","eventTypes":["t%d"],"wait":"60s"}`, n, n)
	for ctx.Err() == nil {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+ledger.Path+"Fetch", strings.NewReader(body))
		if err != nil {
			return
		}
		req.Header.Set("Content-Type", "application/json")
		res, err := client.Do(req)
		if err != nil {
			return
		}
		_ = res.Body.Close()
	}
}
