package ledger_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/faultdb"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/ledger"
	"github.com/bluecone-go/bluecone/migrations"
	"github.com/bluecone-go/bluecone/outbox"
)

// tester is a test, or one of rapid's.
type tester interface {
	require.TestingT
	Helper()
	Logf(format string, args ...any)
}

// fate lets a process die before a statement: nothing that it sends after that reaches its database.
type fate struct {
	left    atomic.Int64  // statements until then, if it is armed
	sent    *atomic.Int64 // what it has sent since then
	isArmed atomic.Bool
	isDead  atomic.Bool
}

func (f *fate) arm(after int) {
	f.left.Store(int64(after))
	f.sent.Store(0)
	f.isArmed.Store(true)
}

func (f *fate) before(context.Context, faultdb.Step) error {
	if f.isArmed.Load() && f.sent.Add(1) > f.left.Load() {
		f.isDead.Store(true)
	}
	if f.isDead.Load() {
		return faultdb.ErrCut
	}
	return nil
}

// process is an instance of the service and a publisher beside it. The test calls it in its own goroutine.
type process struct {
	*fate
	db      *bun.DB
	ob      *outbox.Outbox
	service *ledger.Server
}

// deployment is two instances of the service on one database, and the database of a producer. Nothing runs in the background, and
// time passes when the test says so.
type deployment struct {
	dsn, shopDSN string
	db, shop     *bun.DB // as the test sees them
	d            dialect.Dialect
	authorize    ledger.Authorizer
	sent         atomic.Int64 // statements of the call that was to die last
}

func deploy(t *testing.T, name string) *deployment {
	t.Helper()
	all := &deployment{dsn: testdb.DSN(t, name), shopDSN: testdb.DSN(t, name), authorize: byToken}
	all.db, all.shop = testdb.OpenDSN(t, all.dsn), testdb.OpenDSN(t, all.shopDSN)
	require.NoError(t, migrations.Up(t.Context(), all.db))
	_, err := all.shop.ExecContext(t.Context(), "CREATE TABLE sale (id VARCHAR(64) PRIMARY KEY)")
	require.NoError(t, err)
	_, err = ledger.NewProducer(t.Context(), all.shop, clientTo(t, nil), ledger.ProducerConfig{CheckURL: shopURL})
	require.NoError(t, err) // its table is there
	all.d, err = dialect.Of(all.db)
	require.NoError(t, err)
	return all
}

// byToken is who the machine's callers are.
func byToken(r *http.Request) (ledger.Caller, error) {
	switch r.Header.Get("Authorization") {
	case "Bearer shop":
		return ledger.Caller{Name: "shop", Publish: []string{"order.*"}}, nil
	case "Bearer rival":
		return ledger.Caller{Name: "rival", Publish: []string{"order.*"}, Consume: []string{"Points"}}, nil
	case "Bearer reader":
		return ledger.Caller{Name: "reader", Consume: []string{"Points", "Mail"}}, nil
	}
	return ledger.Caller{}, errors.New("nobody")
}

// start starts an instance: it remembers nothing.
func (all *deployment) start(t tester) *process {
	t.Helper()
	p := &process{fate: &fate{sent: &all.sent}}
	var err error
	p.db, err = testdb.ConnectHooked(all.dsn, faultdb.Hook{Before: p.before})
	require.NoError(t, err)
	p.ob, err = outbox.New(p.db, outbox.Config{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	p.service, err = ledger.New(p.db, p.ob, ledger.Config{Authorizer: all.authorize, Logger: slog.New(slog.DiscardHandler), Lease: leased})
	require.NoError(t, err)
	return p
}

const leased = 30 * time.Second

// RoundTrip sends a request to an instance that dies, or not, before it answers.
func (p *process) RoundTrip(r *http.Request) (*http.Response, error) {
	rec := httptest.NewRecorder()
	p.service.ServeHTTP(rec, r)
	if p.isArmed.Load() {
		p.isDead.Store(true)
		return nil, errors.New("the instance has died")
	}
	return rec.Result(), nil
}

// clientTo is the client of the shop, by way of a transport.
func clientTo(t tester, way http.RoundTripper) *ledger.Client {
	t.Helper()
	c, err := ledger.NewClient(ledger.ClientConfig{URL: "http://ledger", Token: "shop", HTTP: &http.Client{Transport: way}})
	require.NoError(t, err)
	return c
}

// dispatch lets the publisher of an instance work off what is due.
func (p *process) dispatch() error {
	quiet := slog.New(slog.DiscardHandler)
	pub, err := outbox.NewPublisher(p.ob, bus.New(p.db, bus.Config{Logger: quiet}), outbox.PublisherConfig{
		Retention: outbox.RetentionConfig{Keep: -1},
	})
	if err != nil {
		return err
	}
	_, err = pub.RunOnce(context.Background())
	return err
}

// said is what a call came back with.
type said struct {
	code   string // of an error, "" for none
	body   map[string]any
	isLost bool // the instance died
}

// call sends JSON to an instance.
func (p *process) call(t tester, token, method string, body any) said {
	t.Helper()
	text, err := json.Marshal(body)
	require.NoError(t, err)
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, ledger.Path+method, bytes.NewReader(text))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := p.RoundTrip(req)
	if err != nil {
		return said{isLost: true}
	}
	defer res.Body.Close()
	var s said
	require.NoError(t, json.NewDecoder(res.Body).Decode(&s.body))
	if res.StatusCode != http.StatusOK {
		s.code, _ = s.body["code"].(string)
		require.NotEqual(t, "unavailable", s.code, "%s: %v", method, s.body)
	}
	return s
}

// skip lets time pass: the times in the tables move into the past.
func (all *deployment) skip(t tester, by time.Duration) {
	t.Helper()
	for _, c := range []struct{ table, key, column string }{
		{"bc_event_consume_log", "id", "next_retry_at"},
		{"bc_event_consume_log", "id", "created_at"},
		{"bc_outbox_event", "id", "next_retry_at"},
		{"bc_outbox_event", "id", "created_at"},
		{"bc_reservation", "token", "next_check_at"},
		{"bc_reservation", "token", "expires_at"},
	} {
		times := make(map[string]int64)
		all.each(t, "SELECT "+c.key+", "+all.d.Micros(c.column)+" FROM "+c.table+" WHERE "+c.column+" < "+all.d.Never, func(scan func(...any)) {
			var key string
			var at int64
			scan(&key, &at)
			times[key] = at
		})
		for key, at := range times {
			all.exec(t, "UPDATE "+c.table+" SET "+c.column+" = "+all.d.At+" WHERE "+c.key+" = ?", at-by.Microseconds(), key)
		}
	}
}

// empty forgets everything that has happened.
func (all *deployment) empty(t tester) {
	t.Helper()
	for _, table := range []string{
		"bc_outbox_event", "bc_event_consume_log", "bc_delivery_attempt", "bc_audit_log", "bc_consumer", "bc_consumer_type", "bc_reservation",
	} {
		all.exec(t, "DELETE FROM "+table)
	}
	for _, table := range []string{"sale", "bc_barrier"} {
		_, err := all.shop.ExecContext(context.Background(), "DELETE FROM "+table)
		require.NoError(t, err)
	}
}

func (all *deployment) exec(t tester, query string, args ...any) {
	t.Helper()
	_, err := all.db.ExecContext(context.Background(), query, args...)
	require.NoError(t, err, query)
}

func (all *deployment) each(t tester, query string, row func(scan func(...any)), args ...any) {
	t.Helper()
	err := store.EachRow(context.Background(), all.db, func(rows *sql.Rows) (err error) {
		row(func(into ...any) { err = rows.Scan(into...) })
		return err
	}, query, args...)
	require.NoError(t, err, query)
}

// sold are the sales of the shop that are committed.
func (all *deployment) sold(t tester) map[string]bool {
	t.Helper()
	var ids []string
	require.NoError(t, all.shop.NewRaw("SELECT id FROM sale").Scan(context.Background(), &ids))
	sold := make(map[string]bool)
	for _, id := range ids {
		sold[id] = true
	}
	return sold
}

const (
	shopURL = "http://127.0.0.1:1/shop" // where the ledger asks; nobody listens there
	tillURL = "http://127.0.0.1:1/till"
)

// toChecks answers the ledger's questions: those of the shop by its Producer, others by what the test says.
type toChecks struct {
	shop http.Handler
	till func(eventID string) string
}

// RoundTrip implements [http.RoundTripper].
func (c toChecks) RoundTrip(r *http.Request) (*http.Response, error) {
	rec := httptest.NewRecorder()
	if strings.HasSuffix(r.URL.Path, "/shop") {
		c.shop.ServeHTTP(rec, r)
		return rec.Result(), nil
	}
	var q struct{ EventID string }
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		return nil, err
	}
	state := c.till(q.EventID)
	if state == "" {
		return nil, errors.New("nobody answers")
	}
	rec.Header().Set("Content-Type", "application/json")
	_, err := rec.WriteString(`{"state":"` + state + `"}`)
	return rec.Result(), err
}
