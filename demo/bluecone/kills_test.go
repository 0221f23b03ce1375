package main

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/dbserver"
	"github.com/bluecone-go/bluecone/internal/report"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

const (
	killedNodes   = 2
	killCustomers = 12
	killEvery     = 4 * time.Second
	// quietWithin is how long after the last kill something may be open.
	quietWithin = 30 * time.Second
	// glance is how often it is counted, which takes as long as hundreds of deliveries.
	glance = 500 * time.Millisecond
)

// killing is a deployment of two instances, one of which is killed every few seconds and started again under its name.
type killing struct {
	*soak
	kills int
}

func newKilling(t *testing.T, name string) *killing {
	t.Helper()
	dialect := testdb.Dialect(name)
	srv, err := dbserver.Start(name, dbserver.Durable, dbserver.Connections(mostConns))
	if err != nil {
		testdb.Unavailable(t, name, err)
	}
	t.Cleanup(srv.Stop)
	w := &world{t: t, name: name, dialect: dialect, server: srv, nodes: make([]*server, killedNodes)}
	w.makeDatabase()
	way := *w.direct
	way.User = shopUser()
	w.ways = []string{way.String()}
	k := &killing{soak: newSoak(w, rand.Uint64()>>32)}
	for i := range killedNodes {
		k.start(i)
	}
	return k
}

// start starts an instance under a name that it always has.
func (k *killing) start(i int) {
	k.t.Helper()
	s := serveOn(k.t, k.ways[0], []string{lockTimeout}, "--node", fmt.Sprintf("n%d", i))
	k.mu.Lock()
	defer k.mu.Unlock()
	k.nodes[i] = s
}

// live kills one instance after the other for so long, and returns when it has killed the last.
func (k *killing) live(length time.Duration) (last time.Time) {
	k.t.Helper()
	stop := make(chan struct{})
	wait := k.serve(stop, killCustomers, 0)
	halt := sync.OnceFunc(func() { close(stop); wait() })
	k.t.Cleanup(halt)
	for over := time.Now().Add(length); time.Now().Before(over); {
		pause(killEvery)
		i := k.kills % killedNodes
		k.node(i).end(syscall.SIGKILL)
		last = time.Now()
		k.kills++
		k.start(i)
	}
	halt()
	return last
}

// settle waits until nothing is open, and tells what was at some moments after the last kill.
func (k *killing) settle(last time.Time) (quiet time.Duration, seen []string) {
	k.t.Helper()
	for next := time.Duration(0); ; pause(glance) {
		left, err := k.number(stillOpen)
		require.NoError(k.t, err)
		since := time.Since(last)
		if left == 0 {
			return since, seen
		}
		if since >= next {
			seen = append(seen, fmt.Sprintf("%d after %v", left, since.Round(time.Second/10)))
			k.t.Logf("%v after the last kill %d are open", since.Round(time.Second/10), left)
			next = since + 2*time.Second
		}
		if since > patient {
			require.FailNow(k.t, "something is open for ever", strings.Join(k.leftOpen(), "\n"))
		}
		if since > quietWithin && since < quietWithin+2*glance {
			k.t.Logf("open longer than %v:\n%s", quietWithin, strings.Join(k.leftOpen(), "\n"))
		}
	}
}

const stillOpen = "SELECT (SELECT COUNT(*) FROM bc_outbox_event WHERE status NOT IN ('SENT', 'DEAD')) + " +
	"(SELECT COUNT(*) FROM bc_event_consume_log WHERE status NOT IN ('SUCCESS', 'SKIPPED', 'DEAD'))"

// TestTheDemoUnderKillsIsSoonQuiet has twelve customers buy, pay, cancel and refund, without a pause, while one of two
// instances is killed every four seconds. After the last kill it has to be quiet soon, nobody may have lost or gained
// anything, and nothing may be DEAD, for nothing kills its process. BLUECONE_TEST_KILLS is how long this goes on:
// without it the test is left out, for it measures a time.
func TestTheDemoUnderKillsIsSoonQuiet(t *testing.T) {
	t.Parallel()
	text := os.Getenv("BLUECONE_TEST_KILLS")
	if text == "" {
		t.Skip("BLUECONE_TEST_KILLS, such as 1m, makes it measure: make soak PROFILE=kills")
	}
	length, err := time.ParseDuration(text)
	require.NoError(t, err, "BLUECONE_TEST_KILLS must be a duration such as 1m")
	for _, dialect := range testdb.Servers() { //nolint:paralleltest // it measures
		if only := os.Getenv("BLUECONE_TEST_SOAK_DB"); only != "" && only != dialect {
			continue
		}
		t.Run(dialect, func(t *testing.T) {
			k := newKilling(t, dialect)
			last := k.live(length)
			quiet, seen := k.settle(last)
			k.judge()
			suspects, err := k.number("SELECT COUNT(*) FROM bc_delivery_attempt WHERE outcome = 'PROCESSING'")
			require.NoError(t, err)
			head := []string{
				"database", "kills", "customers", "events", "deliveries", "calls without an answer", "open after the last kill",
				"quiet after", "runs without an answer", "violations",
			}
			row := cells(cmp.Or(serverNames[dialect], dialect), k.kills, k.report.customers, k.report.events, k.report.deliveries, k.report.unknown,
				strings.Join(seen[:min(len(seen), 6)], ", "), quiet.Round(time.Second/10), suspects, len(k.report.violations))
			_, _ = fmt.Fprintf(t.Output(), "\n%s\n", report.Table{Head: head, Rows: [][]string{row}})
			for _, v := range k.report.violations {
				t.Log("VIOLATION", v)
			}
			require.Empty(t, k.report.violations)
			require.Less(t, quiet, quietWithin, "after the last kill")
		})
	}
}
