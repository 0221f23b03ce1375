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
	"github.com/bluecone-go/bluecone/console"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/ops"
	"github.com/bluecone-go/bluecone/outbox"
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

// shopApp is a pool of a user who has what the documentation says, and nothing else.
func shopApp(t *testing.T, name string) *bun.DB {
	t.Helper()
	address := testdb.DSN(t, name)
	owner := testdb.OpenDSN(t, address)
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
		execSQL(t, owner, strings.NewReplacer("shop_app", user, "shop.", database+".", ";", "").Replace(s))
	}
	u.User = url.UserPassword(user, "p")
	return testdb.OpenDSN(t, u.String())
}

// TestLeastPrivileges runs all there is with exactly the grants of the documentation.
func TestLeastPrivileges(t *testing.T) {
	for _, name := range testdb.Servers() {
		t.Run(name, func(t *testing.T) {
			db := shopApp(t, name)
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

	o, err := ops.New(db, ob, ops.Config{Publishable: []bus.Event{bought{}}, Jobs: []ops.Job{p}})
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
	for _, page := range []string{
		"", "events", "event?id=" + first, "forensics?key=" + first, "consumers", "dead", "jobs", "instances",
		"bulks", "audit", "doctor",
	} {
		w := httptest.NewRecorder()
		c.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/"+page, nil))
		require.Equal(t, http.StatusOK, w.Code, "%s: %s", page, w.Body)
	}
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
