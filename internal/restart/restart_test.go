package restart_test

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dbserver"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/migrations"
)

const (
	clients = 16
	nodes   = 2
	// patience is how long a client waits for an answer, and the test for what is open in the end.
	patience = 5 * time.Minute
)

// TestTwoInstancesThatSaveInTurnAndAreKilledKeepTheOrder has two instances save the events of each aggregate in turn,
// within milliseconds, and kills one of them every few seconds. It starts again under the same name at once. No
// consumer may get an event before an earlier one of its aggregate, or twice, or never.
// BLUECONE_TEST_RESTARTS is how long this goes on. BLUECONE_TEST_RESTART_LOG is where the instances write their logs.
func TestTwoInstancesThatSaveInTurnAndAreKilledKeepTheOrder(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it takes 15 s")
	}
	length := 4 * time.Second
	if text := os.Getenv("BLUECONE_TEST_RESTARTS"); text != "" {
		var err error
		length, err = time.ParseDuration(text)
		require.NoError(t, err, "BLUECONE_TEST_RESTARTS must be a duration such as 2m")
	}
	for _, dialect := range testdb.Servers() {
		if only := os.Getenv("BLUECONE_TEST_SOAK_DB"); only != "" && only != dialect {
			continue
		}
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			newDeployment(t, dialect).live(length)
		})
	}
}

// deployment is a server of its own and two instances.
type deployment struct {
	t     *testing.T
	db    *bun.DB
	dsn   string
	pause time.Duration // between two kills

	mu    sync.Mutex
	nodes [nodes]*node

	served, unknown, kills atomic.Int64
}

// node is an instance that runs.
type node struct {
	cmd  *exec.Cmd
	base string
}

func newDeployment(t *testing.T, dialect string) *deployment {
	t.Helper()
	srv, err := dbserver.Start(dialect, dbserver.Durable)
	if err != nil {
		testdb.Unavailable(t, dialect, err)
	}
	t.Cleanup(srv.Stop)
	u := *srv.URL
	admin := testdb.OpenDSN(t, u.String())
	_, err = admin.ExecContext(t.Context(), "CREATE DATABASE turns")
	require.NoError(t, err)
	u.Path = "/turns"
	d := &deployment{t: t, dsn: u.String(), db: testdb.OpenDSN(t, u.String()), pause: 3 * time.Second}
	require.NoError(t, migrations.Up(t.Context(), d.db))
	d.exec("CREATE TABLE turn (id VARCHAR(64) PRIMARY KEY, step INT NOT NULL)")
	d.exec("CREATE TABLE account (consumer VARCHAR(32), id INT, moves INT NOT NULL, PRIMARY KEY (consumer, id))")
	d.exec("CREATE TABLE effect (consumer VARCHAR(32), id VARCHAR(64), step INT, missing INT NOT NULL, node VARCHAR(32) NOT NULL, pid INT " +
		"NOT NULL, noted_at " +
		map[string]string{
			"mysql": "DATETIME(6)", "postgres": "TIMESTAMPTZ",
		}[testdb.Dialect(dialect)] + " NOT NULL, PRIMARY KEY (consumer, id, step))")
	var rows []string
	for _, c := range consumers() {
		for n := range accounts {
			rows = append(rows, fmt.Sprintf("('%s', %d, 0)", c, n))
		}
	}
	d.exec("INSERT INTO account (consumer, id, moves) VALUES " + strings.Join(rows, ", "))
	for i := range nodes {
		d.start(i)
	}
	return d
}

func (d *deployment) exec(query string, args ...any) {
	d.t.Helper()
	_, err := d.db.ExecContext(d.t.Context(), query, args...)
	require.NoError(d.t, err, query)
}

// start starts an instance under its name, which is always the same.
func (d *deployment) start(i int) {
	d.t.Helper()
	self, err := os.Executable()
	require.NoError(d.t, err)
	cmd := exec.CommandContext(context.Background(), self)
	cmd.Env = append(os.Environ(), envDSN+"="+d.dsn, fmt.Sprintf("%s=n%d", envNode, i))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(d.t, err)
	require.NoError(d.t, cmd.Start())
	d.t.Cleanup(func() { _ = cmd.Process.Kill() }) // it may have ended
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(d.t, err, "the instance does not listen")
	d.mu.Lock()
	defer d.mu.Unlock()
	d.nodes[i] = &node{cmd, "http://" + strings.TrimSpace(strings.TrimPrefix(line, "listens on "))}
}

func (d *deployment) node(i int) *node {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.nodes[i]
}

// kill kills an instance and starts it again.
func (d *deployment) kill(i int) {
	d.t.Helper()
	n := d.node(i)
	require.NoError(d.t, n.cmd.Process.Signal(syscall.SIGKILL))
	_ = n.cmd.Wait() // it was killed
	d.start(i)
	d.kills.Add(1)
}

// live lets clients come and instances be killed for so long, and checks what the consumers have got.
func (d *deployment) live(length time.Duration) {
	d.t.Helper()
	stop, over := make(chan struct{}), time.Now().Add(length)
	var all sync.WaitGroup
	for range clients {
		all.Go(func() { d.client(stop) })
	}
	halt := sync.OnceFunc(func() { close(stop); all.Wait() })
	d.t.Cleanup(halt)
	for time.Now().Before(over) {
		<-time.After(min(d.pause, time.Until(over)))
		d.kill(rand.IntN(nodes))
	}
	halt()
	d.judge()
}

// client saves the events of one aggregate after the other.
func (d *deployment) client(stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		default:
		}
		id, first := uuid.Must(uuid.NewV7()).String(), rand.IntN(nodes)
		for step := range steps {
			if rand.IntN(3) == 0 {
				<-time.After(time.Duration(rand.IntN(150)) * time.Millisecond)
			}
			if !d.insist(id, step, first+step) {
				return
			}
		}
		d.served.Add(1)
	}
}

// impatient gives up early: another instance may do better.
var impatient = &http.Client{Timeout: 3 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// insist asks one instance after the other until the step is known to be taken.
func (d *deployment) insist(id string, step, at int) bool {
	for over := time.Now().Add(patience); time.Now().Before(over); at++ {
		res, err := impatient.PostForm(d.node(at%nodes).base, url.Values{"id": {id}, "step": {fmt.Sprint(step)}})
		if err == nil {
			_, _ = io.Copy(io.Discard, res.Body)
			_ = res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return true
			}
		}
		d.unknown.Add(1)
	}
	d.t.Errorf("no instance takes step %d of %s", step, id)
	return false
}

// judge waits until nothing is open, and checks the effects.
func (d *deployment) judge() {
	d.t.Helper()
	quiet, began := true, time.Now()
	for d.number(openRows) > 0 && quiet {
		<-time.After(100 * time.Millisecond)
		quiet = time.Since(began) < patience
	}
	aggregates, effects := d.number("SELECT COUNT(*) FROM turn WHERE step = ?", steps-1), d.number("SELECT COUNT(*) FROM effect")
	early := d.number("SELECT COUNT(*) FROM effect WHERE missing > 0")
	d.t.Logf("%d aggregates, %d effects, %d kills, %d calls without an answer, %d effects too early, quiet after %v (%v)",
		aggregates, effects, d.kills.Load(), d.unknown.Load(), early, time.Since(began).Round(time.Millisecond), quiet)
	for _, id := range d.strings("SELECT DISTINCT id FROM effect WHERE missing > 0 LIMIT 5") {
		d.t.Log(strings.Join(d.story(id), "\n"))
	}
	require.Zero(d.t, early, "an event came before an earlier one of its aggregate")
	require.True(d.t, quiet, "something is open for ever: %v", d.strings(openList))
	require.Equal(d.t, aggregates*int64(steps*len(consumers())), effects, "every consumer gets every event once")
}

const (
	openRows = "SELECT (SELECT COUNT(*) FROM bc_outbox_event WHERE status <> 'SENT') + (SELECT COUNT(*) FROM bc_event_consume_log " +
		"WHERE status NOT IN ('SUCCESS', 'SKIPPED'))"
	openList = "SELECT CONCAT(consumer_name, ' ', event_id, ' ', status, ' ', attempts, ' ', COALESCE(error_message, '')) " +
		"FROM bc_event_consume_log " +
		"WHERE status NOT IN ('SUCCESS', 'SKIPPED') ORDER BY id LIMIT 10"
)

// story is what the tables say about an aggregate.
func (d *deployment) story(id string) []string {
	lines := d.strings("SELECT CONCAT('event ', id, ' ', event_id, ' ', event_type, ' ', status, ' version ', lock_version, ' retries ', "+
		"retry_count, ' created ', created_at, ' updated ', updated_at, "+
		"' ', COALESCE(event_metadata, '')) FROM bc_outbox_event WHERE aggregate_id = ? ORDER BY id", id)
	lines = append(lines, d.strings("SELECT CONCAT('delivery ', l.event_type, ' to ', l.consumer_name, ' ', l.status, ' attempts ', "+
		"l.attempts, ' version ', l.lock_version, ' created ', l.created_at, "+
		"' consumed ', l.consumed_at) FROM bc_event_consume_log l JOIN bc_outbox_event e ON e.event_id = l.event_id WHERE e.aggregate_id = ? "+
		"ORDER BY l.id", id)...)
	return append(lines, d.strings("SELECT CONCAT('effect ', consumer, ' ', step, ' missing ', missing, ' by ', node, ' ', pid, ' at ', "+
		"noted_at) FROM effect WHERE id = ? ORDER BY consumer, step", id)...)
}

func (d *deployment) number(query string, args ...any) (n int64) {
	d.t.Helper()
	require.NoError(d.t, d.db.QueryRowContext(context.Background(), query, args...).Scan(&n))
	return n
}

func (d *deployment) strings(query string, args ...any) (out []string) {
	d.t.Helper()
	if err := d.db.NewRaw(query, args...).Scan(context.Background(), &out); !errors.Is(err, sql.ErrNoRows) {
		require.NoError(d.t, err)
	}
	return out
}
