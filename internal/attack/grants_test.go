//go:build !race

package attack_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/alert"
	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consistency"
	"github.com/bluecone-go/bluecone/console"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/ops"
	"github.com/bluecone-go/bluecone/outbox"
	"github.com/bluecone-go/bluecone/reaper"
)

// gift is an event with a key.
type gift struct {
	bought
	Key string
}

func (g gift) IdempotencyKey() string { return g.Key }

// grants are the statements that docs/security.md gives for a database.
func grants(t *testing.T, title string) []string {
	t.Helper()
	page, err := os.ReadFile("../../docs/security.md")
	require.NoError(t, err)
	block := regexp.MustCompile("(?s)\n" + title + ":\n\n```sql\n(.*?)```").FindStringSubmatch(string(page))
	require.NotNil(t, block)
	return regexp.MustCompile(`(?m)^GRANT .*;$`).FindAllString(block[1], -1)
}

// shopApp is a pool of a user who has what the documentation says, with what change makes of each grant, and nothing else;
// and a pool of the owner of the tables.
func shopApp(t *testing.T, name string, change func(grant string) string) (app, owner *bun.DB) {
	t.Helper()
	address := testdb.DSN(t, name)
	owner = testdb.OpenDSN(t, address)
	require.NoError(t, migrate(t, owner))
	execSQL(t, owner, "CREATE TABLE secret (id int)")
	u, err := url.Parse(address)
	require.NoError(t, err)
	database := strings.Trim(u.Path, "/")
	user := "app_" + database[len(database)-8:]
	statements, create, drop := grants(t, "PostgreSQL"), "CREATE ROLE "+user+" LOGIN PASSWORD 'p'", "DROP OWNED BY "+user+"; DROP ROLE "+user
	if testdb.Dialect(name) == "mysql" {
		statements, create, drop = grants(t, "MariaDB and MySQL"), "CREATE USER '"+user+"'@'%' IDENTIFIED BY 'p'", "DROP USER '"+user+"'@'%'"
	}
	execSQL(t, owner, create)
	t.Cleanup(func() { _, _ = owner.ExecContext(context.Background(), drop) })
	for _, s := range statements {
		execSQL(t, owner, change(strings.NewReplacer("shop_app", user, "shop.", database+".", ";", "").Replace(s)))
	}
	u.User = url.UserPassword(user, "p")
	return testdb.OpenDSN(t, u.String()), owner
}

// asDocumented changes nothing.
func asDocumented(grant string) string { return grant }

// TestLeastPrivileges runs all there is with exactly the grants of the documentation.
func TestLeastPrivileges(t *testing.T) {
	for _, name := range testdb.Servers() {
		t.Run(name, func(t *testing.T) {
			db, _ := shopApp(t, name, asDocumented)
			for _, forbidden := range []string{
				"SELECT * FROM secret", "UPDATE bc_audit_log SET actor = 'nobody'", "DROP TABLE bc_outbox_event",
				"CREATE TABLE x (id int)", "INSERT INTO bc_schema_version (version) VALUES (99)",
			} {
				_, err := db.ExecContext(t.Context(), forbidden)
				require.Error(t, err, forbidden)
			}
			liveOnGrants(t, db)
		})
	}
}

// liveOnGrants saves, delivers, fails, alerts, operates, looks and cleans up.
func liveOnGrants(t *testing.T, db *bun.DB) {
	t.Helper()
	ob, err := outbox.New(db, outbox.Config{Instance: "granted"})
	require.NoError(t, err)
	b := bus.New(db, bus.Config{})
	bus.On(b.Consumer("Shop", bus.ConsumerConfig{Replayable: true}), func(context.Context, bun.Tx, bus.Message[bought]) error { return nil })
	bus.On(b.Consumer("Moody", bus.ConsumerConfig{}), func(_ context.Context, _ bun.Tx, m bus.Message[bought]) error {
		if strings.HasPrefix(m.Payload.Order, "bad") {
			return bus.Permanent(errors.New("no"))
		}
		return nil
	})
	p, err := outbox.NewPublisher(ob, b, outbox.PublisherConfig{})
	require.NoError(t, err)
	for _, order := range []string{"1", "2", "bad", "bad2"} {
		require.NoError(t, db.RunInTx(t.Context(), nil, func(ctx context.Context, tx bun.Tx) error {
			return ob.Save(ctx, tx, gift{bought{Order: order}, "k" + order}, bought{Order: "n" + order})
		}))
	}
	_, err = p.RunOnce(t.Context())
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- p.Run(ctx) }()
	require.Eventually(t, func() bool {
		var n int
		return db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM bc_instance").Scan(&n) == nil && n > 0
	}, 2*time.Minute, 20*time.Millisecond)

	o, err := ops.New(db, ob, ops.Config{Publishable: []bus.Event{bought{}}, Jobs: append(businessJobs(t, db, ob), p)})
	require.NoError(t, err)
	op := ops.Operation{Actor: "anna", Reason: "a test"}
	dead, err := o.Events(t.Context(), ops.Query{Consumer: "Moody"})
	require.NoError(t, err)
	require.Len(t, dead.Rows, 2)
	first, second := dead.Rows[0].EventID, dead.Rows[1].EventID
	require.NoError(t, o.Retry(t.Context(), op, first))
	_, err = p.RunOnce(t.Context())
	require.NoError(t, errors.Join(err, o.Skip(t.Context(), op, second, "Moody"), o.Reopen(t.Context(), op, second, "Moody")))
	_, err = p.RunOnce(t.Context())
	require.NoError(t, err)
	require.NoError(t, o.Pause(t.Context(), op, "Shop", time.Hour))
	require.NoError(t, o.Resume(t.Context(), op, "Shop"))
	require.NoError(t, o.Replay(t.Context(), op, first, "Shop"))
	for job, code := range map[string]string{reaper.JobCode: "released", consistency.JobCode: "repaired"} {
		counts, ran, err := o.RunJob(t.Context(), op, job)
		require.NoError(t, err)
		require.True(t, ran, job)
		require.EqualValues(t, 1, counts[code], "%s: %v", job, counts)
	}
	_, err = o.Publish(t.Context(), op, ops.Manual{EventType: "order.bought", Payload: `{"order":"9"}`})
	require.NoError(t, err)
	_, err = o.StartBulk(t.Context(), op, ops.NewBulk{Action: ops.ActionDiscard, Query: ops.Query{Consumer: "Moody"}})
	require.NoError(t, err)
	_, err = o.RunBulkOnce(t.Context())
	require.NoError(t, err)
	c, err := console.New(o, console.Config{
		Authorize: console.Anyone(console.Principal{Name: "anna", May: append(console.Admin(), console.PayloadView)}),
	})
	require.NoError(t, err)
	requirePages(t, c, first)
	a, err := alert.New(db, ob, alert.Config{Limits: alert.LimitsConfig{Dead: 1}})
	require.NoError(t, err)
	_, err = a.RunOnce(t.Context())
	require.NoError(t, err)
	stop()
	require.NoError(t, <-ran)
	for _, archive := range []bool{true, false} {
		execSQL(t, db, "UPDATE bc_outbox_event SET sent_at = created_at WHERE status = 'SENT'")
		r, err := outbox.NewRetention(ob, outbox.RetentionConfig{Keep: time.Minute, Archive: archive})
		require.NoError(t, err)
		_, err = r.RunOnce(t.Context())
		require.NoError(t, err)
	}
	require.NoError(t, o.Retire(t.Context(), op, "Moody"))
}

// businessJobs are a reaper that releases a lock and a check that backfills an event. What they find is in no table, so that they
// need no grants but those of the library.
func businessJobs(t *testing.T, db *bun.DB, ob *outbox.Outbox) []ops.Job {
	t.Helper()
	released := false
	locks, err := reaper.New(db, ob, reaper.Config{}, reaper.Task{
		Name: "seat.hold", Consumer: "Shop",
		Owner: &reaper.Owner{Guard: func(context.Context, bun.Tx, reaper.Aggregate) (bool, error) { return true, nil }},
		Find: func(context.Context, bun.IDB, reaper.Query) ([]reaper.Lock, error) {
			if released {
				return nil, nil
			}
			return []reaper.Lock{{ID: "12A", AggregateType: "SEAT", AggregateID: "12A", Age: 2 * time.Hour}}, nil
		},
		Release: func(context.Context, bun.Tx, reaper.Lock) (bool, error) { released = true; return true, nil },
	})
	require.NoError(t, err)
	checks, err := consistency.New(db, consistency.Config{}, consistency.Check[string]{
		Name: "order.bought",
		Key:  func(order string) string { return order },
		Find: func(_ context.Context, _ bun.IDB, q consistency.Query) ([]string, error) {
			if q.After != "" {
				return nil, nil
			}
			return []string{"forgotten"}, nil
		},
		Missing: func(ctx context.Context, db bun.IDB, orders []string) ([]string, error) {
			missing, err := ob.Missing(ctx, db, []string{outbox.EventID(0, bought{}.EventType(), "kforgotten")})
			if err != nil || len(missing) == 0 {
				return nil, err
			}
			return orders, nil
		},
		Repair: func(ctx context.Context, tx bun.Tx, order string) (bool, error) {
			return true, ob.Save(ctx, tx, gift{bought{Order: order}, "k" + order})
		},
	})
	require.NoError(t, err)
	return []ops.Job{locks, checks}
}

// TestAuditLogThatNobodyEmpties runs all there is without DELETE on the audit log, which retention leaves alone.
func TestAuditLogThatNobodyEmpties(t *testing.T) {
	for _, name := range testdb.Servers() {
		t.Run(name, func(t *testing.T) {
			db, owner := shopApp(t, name, func(grant string) string {
				if strings.Contains(grant, "bc_audit_log") {
					require.Contains(t, grant, "INSERT, DELETE")
					return strings.Replace(grant, "INSERT, DELETE", "INSERT", 1)
				}
				return grant
			})
			ob, err := outbox.New(db, outbox.Config{})
			require.NoError(t, err)
			execSQL(t, owner, "INSERT INTO bc_audit_log (actor, action, target, reason, created_at) "+
				"VALUES ('anna', 'retry', 'e', 'long ago', '2001-01-01 00:00:00')")
			r, err := outbox.NewRetention(ob, outbox.RetentionConfig{KeepAudit: -1})
			require.NoError(t, err)
			_, err = r.RunOnce(t.Context())
			require.NoError(t, err)
			_, err = db.ExecContext(t.Context(), "DELETE FROM bc_audit_log")
			require.Error(t, err)
		})
	}
}

// TestConsoleThatOnlyReads shows every page with SELECT alone.
func TestConsoleThatOnlyReads(t *testing.T) {
	for _, name := range testdb.Servers() {
		t.Run(name, func(t *testing.T) {
			db, owner := shopApp(t, name, func(grant string) string {
				return regexp.MustCompile(`GRANT SELECT[A-Z, ]* ON`).ReplaceAllString(grant, "GRANT SELECT ON")
			})
			execSQL(t, owner, "INSERT INTO bc_outbox_event (aggregate_type, aggregate_id, event_type, event_id, event_payload) "+
				"VALUES ('ORDER', '1', 'order.bought', 'seen', '{}')")
			_, err := db.ExecContext(t.Context(), "DELETE FROM bc_alert")
			require.Error(t, err)
			ob, err := outbox.New(db, outbox.Config{})
			require.NoError(t, err)
			o, err := ops.New(db, ob, ops.Config{})
			require.NoError(t, err)
			c, err := console.New(o, console.Config{
				ReadOnly: true, Authorize: console.Anyone(console.Principal{Name: "rita", May: console.ReadOnly()}),
			})
			require.NoError(t, err)
			requirePages(t, c, "seen")
		})
	}
}

// requirePages asks for every page that may be looked at.
func requirePages(t *testing.T, c *console.Console, eventID string) {
	t.Helper()
	for _, page := range []string{
		"", "events", "event?id=" + eventID, "forensics?key=" + eventID, "consumers", "dead", "jobs", "instances", "brokers", "reservations",
		"bulks", "audit", "doctor",
	} {
		w := httptest.NewRecorder()
		c.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/"+page, nil))
		require.Equal(t, http.StatusOK, w.Code, "%s: %s", page, w.Body)
	}
}
