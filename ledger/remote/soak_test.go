package remote_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/invariant"
	"github.com/bluecone-go/bluecone/migrations"
)

// soak is a deployment of processes: instances of a ledger on one database, behind one address; consumers, each with a database of its
// own; and a producer, with another.
type soak struct {
	t         *testing.T
	processes map[string]*child
	names     []string // of the processes
	consumers []string
	front     *gate              // the address of the ledger
	databases *gate              // that of the server of all databases, nil for files
	ledger    *bun.DB            // past the gate
	shop      *bun.DB            // likewise
	own       map[string]*bun.DB // of the consumers, likewise
	shopURL   string
	faults    map[string]int
}

const soakInstances = 3

func newSoak(t *testing.T, database string) *soak {
	t.Helper()
	s := &soak{
		t: t, processes: make(map[string]*child), own: make(map[string]*bun.DB), faults: make(map[string]int),
		consumers: []string{"PointsConsumer", "MailConsumer", "StockConsumer"},
	}
	dsn := func() (direct *bun.DB, gated string) {
		direct, gated = s.database(testdb.DSN(t, database))
		return direct, gated
	}
	var ledgerDSN, shopDSN string
	s.ledger, ledgerDSN = dsn()
	require.NoError(t, migrations.Up(t.Context(), s.ledger))
	var addresses []string
	for i := range soakInstances {
		at := freeAddress(t)
		addresses = append(addresses, at)
		s.add(fmt.Sprint("ledger ", i), map[string]string{childRole: roleLedger, childDSN: ledgerDSN, childAddr: at})
	}
	s.front = listen(t, addresses...)
	for _, name := range s.consumers {
		db, gated := dsn()
		require.NoError(t, migrations.Up(t.Context(), db))
		define(t, db, "CREATE TABLE effect (event_id VARCHAR(64), order_id VARCHAR(64), seq INTEGER, earlier INTEGER)",
			"CREATE INDEX effect_of ON effect (order_id)")
		s.own[name] = db
		s.add(name, map[string]string{childRole: roleConsumer, childDSN: gated, childLedger: "http://" + s.front.addr(), childName: name})
	}
	testdb.Eventually(t, func() bool { // a new consumer gets what is saved from its first call on
		s.supervise()
		return count(t, s.ledger, "SELECT COUNT(*) FROM bc_consumer") == len(s.consumers)
	}, "every consumer is registered")
	s.shop, shopDSN = dsn()
	define(t, s.shop, "CREATE TABLE sale (event_id VARCHAR(64) PRIMARY KEY, order_id VARCHAR(64), seq INTEGER)")
	at := freeAddress(t)
	s.shopURL = "http://" + at
	s.add(roleProducer, map[string]string{childRole: roleProducer, childDSN: shopDSN, childLedger: "http://" + s.front.addr(), childAddr: at})
	return s
}

// database opens a database, and tells how processes reach it: through a gate that can cut their connections.
func (s *soak) database(dsn string) (direct *bun.DB, gated string) {
	s.t.Helper()
	direct = testdb.OpenDSN(s.t, dsn)
	if strings.HasPrefix(dsn, "sqlite:") {
		return direct, dsn
	}
	host := hostOf(s.t, dsn)
	if s.databases == nil {
		s.databases = listen(s.t, host)
	}
	return direct, strings.Replace(dsn, host, s.databases.addr(), 1)
}

func define(t *testing.T, db *bun.DB, statements ...string) {
	t.Helper()
	for _, statement := range statements {
		_, err := db.ExecContext(t.Context(), statement)
		require.NoError(t, err, statement)
	}
}

// add adds a process to the deployment, and starts it.
func (s *soak) add(name string, env map[string]string) {
	s.t.Helper()
	s.names = append(s.names, name)
	s.processes[name] = startChild(s.t, name, env)
}

// trouble does one thing after another to the processes and their connections, for so long.
func (s *soak) trouble(length time.Duration) {
	s.t.Helper()
	for over := time.Now().Add(length); time.Now().Before(over); {
		pause(200*time.Millisecond + rand.N(time.Second))
		s.supervise()
		victim := s.processes[s.names[rand.IntN(len(s.names))]]
		switch n := rand.IntN(10); {
		case n < 5:
			s.faults["kills"]++
			victim.Kill()
			pause(rand.N(time.Second))
			victim.start(s.t)
		case n < 7: // longer than a lease, now and then
			s.faults["freezes"]++
			victim.Freeze()
			pause(500*time.Millisecond + rand.N(2*soakLease))
			victim.Thaw()
		case n < 9 || s.databases == nil:
			s.faults["cuts of all calls"]++
			s.front.cut()
		default:
			s.faults["cuts of all databases"]++
			s.databases.cut()
		}
	}
}

// pause is part of the trouble: nothing is waited for.
func pause(d time.Duration) { <-time.After(d) }

// supervise starts again what has ended by itself: a consumer that finds no database at its start, say.
func (s *soak) supervise() {
	s.t.Helper()
	for _, name := range s.names {
		if p := s.processes[name]; !p.Running() {
			s.faults["ends by themselves"]++
			s.t.Logf("%s has ended: %s", name, p.Log())
			p.start(s.t)
		}
	}
}

// close lets the producer make no more sales.
func (s *soak) close() {
	s.t.Helper()
	require.Eventually(s.t, func() bool {
		s.supervise()
		ctx, cancel := context.WithTimeout(s.t.Context(), 30*time.Second)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.shopURL+"/close", bytes.NewReader(nil))
		require.NoError(s.t, err)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	}, testdb.Patience(), 100*time.Millisecond)
}

// isQuiet reports whether nothing is open any more.
func (s *soak) isQuiet() bool {
	s.t.Helper()
	s.supervise()
	open := count(s.t, s.ledger, "SELECT COUNT(*) FROM bc_reservation WHERE state = 'PREPARED'") +
		count(s.t, s.ledger, "SELECT COUNT(*) FROM bc_outbox_event WHERE status <> 'SENT'")
	return open == 0
}

// sale is an event that the producer has committed, or the effect of one.
type sale struct {
	EventID string
	OrderID string
	Seq     int
}

func (s *soak) read(db *bun.DB, table string) (all []sale) {
	s.t.Helper()
	require.NoError(s.t, db.NewSelect().Table(table).Column("event_id", "order_id", "seq").OrderExpr("order_id, seq, event_id").
		Scan(s.t.Context(), &all))
	return all
}

func count(t *testing.T, db *bun.DB, query string) (n int) {
	t.Helper()
	require.NoError(t, db.QueryRowContext(t.Context(), query).Scan(&n))
	return n
}

// judge compares what the consumers have with what the producer has committed.
func (s *soak) judge() {
	s.t.Helper()
	sold := s.read(s.shop, "sale")
	require.NotEmpty(s.t, sold)
	for _, name := range s.consumers {
		effects := s.read(s.own[name], "effect")
		if !slices.Equal(sold, effects) {
			s.t.Fatalf("%s: %d effects of %d sales: %s", name, len(effects), len(sold), difference(sold, effects))
		}
		require.Zero(s.t, count(s.t, s.own[name], "SELECT COUNT(*) FROM effect WHERE earlier <> seq"), "%s: effects out of order", name)
	}
	require.Equal(s.t, len(sold), count(s.t, s.ledger, "SELECT COUNT(*) FROM bc_outbox_event"), "what was not committed is published")
	require.Zero(s.t, count(s.t, s.ledger, "SELECT COUNT(*) FROM bc_event_consume_log WHERE status NOT IN ('SUCCESS')"))
	found, err := invariant.Check(s.t.Context(), s.ledger, invariant.Config{Quiet: true})
	require.NoError(s.t, err)
	require.Empty(s.t, found)
}

// difference names what is lost, and what is there twice or should not be.
func difference(sold, effects []sale) string {
	left := make(map[sale]int)
	for _, e := range effects {
		left[e]++
	}
	var out []string
	for _, e := range sold {
		if left[e]--; left[e] < 0 {
			out = append(out, fmt.Sprintf("%v is lost", e))
		}
	}
	for e, n := range left {
		if n > 0 {
			out = append(out, fmt.Sprintf("%v is there %d times too often", e, n))
		}
	}
	return strings.Join(out[:min(len(out), 10)], "; ")
}

// A producer makes sales, reserves an event for each, and commits most of them, while instances of the ledger, consumers and the producer
// are killed and frozen, and their connections cut. In the end each consumer has the effect of each sale once, in the order of its
// aggregate, and nothing else. The trouble lasts for BLUECONE_TEST_LEDGER_SOAK, on the servers; without that a few seconds, on SQLite.
func TestLedgerUnderKillsFreezesAndCuts(t *testing.T) {
	t.Parallel()
	length, databases := 4*time.Second, []string{"sqlite"}
	if text := os.Getenv("BLUECONE_TEST_LEDGER_SOAK"); text != "" {
		var err error
		length, err = time.ParseDuration(text)
		require.NoError(t, err, "BLUECONE_TEST_LEDGER_SOAK must be a duration such as 10m")
		databases = []string{"mysql", "postgres"}
		if only := os.Getenv("BLUECONE_TEST_SOAK_DB"); only != "" && only != "both" {
			databases = []string{only}
		}
	}
	for _, name := range databases { //nolint:paralleltest // one has the machine to itself
		t.Run(name, func(t *testing.T) {
			s := newSoak(t, name)
			s.trouble(length)
			s.close()
			began := time.Now()
			require.Eventually(t, s.isQuiet, testdb.Patience(), 200*time.Millisecond)
			quiet := time.Since(began)
			s.judge()
			t.Logf("%v: %d sales, %v; quiet after %v", length, count(t, s.shop, "SELECT COUNT(*) FROM sale"), s.faults, quiet.Round(time.Second/10))
		})
	}
}
