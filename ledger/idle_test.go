package ledger_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/faultdb"
	"github.com/bluecone-go/bluecone/internal/spi"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/ledger"
	"github.com/bluecone-go/bluecone/migrations"
	"github.com/bluecone-go/bluecone/outbox"
)

// counted are the statements of a pool.
type counted struct {
	mu  sync.Mutex
	all map[string]int
}

func (c *counted) before(_ context.Context, s faultdb.Step) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all[s.Query]++
	return nil
}

// take returns the counts since the last time.
func (c *counted) take() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.all
	c.all = make(map[string]int)
	return all
}

// Calls of Fetch that wait send nothing and hold no connection: one statement looks for all of them, and what comes wakes those
// whose consumer it is for.
func TestIdleFetchesShareOneStatement(t *testing.T) {
	t.Parallel()
	for _, name := range testdb.Dialects() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const calls, consumers, pool = 200, 10, 2
			dsn, seen := testdb.DSN(t, name), &counted{all: make(map[string]int)}
			require.NoError(t, migrations.Up(t.Context(), testdb.OpenDSN(t, dsn)))
			db, err := testdb.ConnectHooked(dsn, faultdb.Hook{Before: seen.before})
			require.NoError(t, err)
			t.Cleanup(func() { _ = db.Close() })
			db.SetMaxOpenConns(pool)
			quiet := slog.New(slog.DiscardHandler)
			ob, err := outbox.New(db, outbox.Config{Logger: quiet})
			require.NoError(t, err)
			p := &process{fate: &fate{}, db: db, ob: ob}
			p.service, err = ledger.New(db, ob, ledger.Config{Authorizer: ledger.Anybody, Logger: quiet})
			require.NoError(t, err)
			testdb.Run(t, p.service)

			answers := make(chan string, calls+2)
			for n := range calls {
				go func() { answers <- fetched(p, n%consumers) }()
			}
			require.Eventually(t, func() bool { return p.service.Waiting() == calls }, testdb.Patience(), 10*time.Millisecond)
			look := textOf(t, p, seen)
			requireIdle(t, seen, look)
			require.Equal(t, calls, p.service.Waiting())
			registered := map[string]any{"consumer": fmt.Sprint("C", consumers), "eventTypes": []any{fmt.Sprint("t", consumers)}}
			p.call(t, "", "Fetch", registered)
			alone, beside := sentBy(t, p, seen, look, answers, consumers), sentBy(t, p, seen, look, answers, 0)
			require.Less(t, beside, alone, "nobody looks for a consumer for which another call has found nothing")

			p.call(t, "", "Publish", map[string]any{"events": []any{map[string]any{
				"eventType": "t3", "aggregateType": "A", "aggregateId": "1", "payload": map[string]any{},
			}}})
			require.NoError(t, p.dispatch())
			require.Contains(t, <-answers, `"eventType":"t3"`)
			require.GreaterOrEqual(t, p.service.Waiting(), calls-2*4, "only a few calls of that consumer have looked")
		})
	}
}

// fetched is the answer to a consumer that waits for long. The end of the test ends the wait, too.
func fetched(p *process, n int) string {
	body := fmt.Sprintf(`{"consumer":"C%d","eventTypes":["t%d"],"wait":"60s"}`, n, n)
	req := httptest.NewRequest(http.MethodPost, ledger.Path+"Fetch", strings.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	rec := httptest.NewRecorder()
	p.service.ServeHTTP(rec, req)
	return rec.Body.String()
}

// sentBy is how many statements another call sends until it waits.
func sentBy(t *testing.T, p *process, seen *counted, look string, answers chan<- string, consumer int) int {
	t.Helper()
	seen.take()
	waiting := p.service.Waiting()
	go func() { answers <- fetched(p, consumer) }()
	testdb.Eventually(t, func() bool { return p.service.Waiting() == waiting+1 }, "it waits")
	return requireIdle(t, seen, look)
}

// textOf is the statement that looks for all. It waits until the service has sent it.
func textOf(t *testing.T, p *process, seen *counted) (look string) {
	t.Helper()
	before := make(map[string]int)
	testdb.Eventually(t, func() bool {
		maps.Copy(before, seen.take())
		_, err := spi.DueConsumers(t.Context(), p.db)
		require.NoError(t, err)
		for query, n := range seen.take() {
			if strings.Contains(query, "bc_consumer") && strings.Contains(query, "bc_event_consume_log") && before[query]+n > 1 {
				look = query
			}
		}
		return look != ""
	}, "the service looks for all")
	return look
}

// requireIdle waits until so many looks have come one after the other with nothing between them but what the service does for all,
// however many wait: it asks for reservations, and makes due what was parked before a consumer came. It returns how many others there were.
func requireIdle(t *testing.T, seen *counted, look string) (sent int) {
	t.Helper()
	looks, other := 0, ""
	for deadline := time.Now().Add(testdb.Patience()); looks < 15; <-time.After(20 * time.Millisecond) {
		require.True(t, time.Now().Before(deadline), "somebody who waits sends: %s", other)
		for query, n := range seen.take() {
			switch {
			case query == look:
				looks += n
			case query == "", strings.Contains(query, "bc_reservation"), strings.Contains(query, "SCHEDULED"), strings.HasPrefix(query, "SET"):
			default: // its first look, perhaps
				looks, other = 0, query
				sent += n
			}
		}
	}
	return sent
}
