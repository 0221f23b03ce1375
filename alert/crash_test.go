package alert_test

import (
	"context"
	"database/sql"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/mysqldialect"
	"github.com/uptrace/bun/dialect/pgdialect"
	"github.com/uptrace/bun/dialect/sqlitedialect"

	"github.com/bluecone-go/bluecone/alert"
	"github.com/bluecone-go/bluecone/internal/dbserver"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/migrations"
	"github.com/bluecone-go/bluecone/outbox"
)

const (
	envDSN  = "BLUECONE_ALERT_DSN"
	envHook = "BLUECONE_ALERT_HOOK"
)

// child is an instance of its own: it looks once, and tells a webhook.
func child(ctx context.Context) error {
	db, err := open(os.Getenv(envDSN))
	if err != nil {
		return err
	}
	ob, err := outbox.New(db, outbox.Config{Logger: quiet})
	if err != nil {
		return err
	}
	hook, err := alert.Webhook(alert.WebhookConfig{URL: os.Getenv(envHook)})
	if err != nil {
		return err
	}
	a, err := alert.New(db, ob, alert.Config{Routes: to(hook), Logger: quiet})
	if err != nil {
		return err
	}
	_, err = a.RunOnce(ctx)
	return err
}

func open(dsn string) (*bun.DB, error) {
	u, err := url.Parse(dsn)
	if err != nil {
		return nil, err
	}
	switch u.Scheme {
	case "sqlite":
		pool, err := sql.Open("sqlite", "file:"+u.EscapedPath()+"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)")
		return bun.NewDB(pool, sqlitedialect.New()), err
	case "mysql":
		pool, err := sql.Open("mysql", dbserver.MySQLConfig(u).FormatDSN())
		return bun.NewDB(pool, mysqldialect.New()), err
	}
	pool, err := sql.Open("pgx", dsn)
	return bun.NewDB(pool, pgdialect.New()), err
}

// A process that is killed when the receiver has the message, and before it knows, sends it again in
// its next life, under the same id.
func TestAKilledProcessTellsAgain(t *testing.T) {
	t.Parallel()
	for _, d := range testdb.Dialects() {
		t.Run(d, func(t *testing.T) {
			t.Parallel()
			dsn := testdb.DSN(t, d)
			db := testdb.OpenDSN(t, dsn)
			require.NoError(t, migrations.Up(t.Context(), db))
			delivery(t, db, "DEAD", "A", "order.paid", 10, time.Second)
			self, err := os.Executable()
			require.NoError(t, err)
			var mu sync.Mutex
			var victim *os.Process
			var ids []string
			server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				mu.Lock()
				defer mu.Unlock()
				ids = append(ids, r.Header.Get(alert.IDHeader))
				if len(ids) == 1 {
					_ = victim.Kill()
				}
			}))
			defer server.Close()
			start := func() error {
				cmd := exec.CommandContext(t.Context(), self)
				cmd.Env = append(os.Environ(), envDSN+"="+dsn, envHook+"="+server.URL)
				mu.Lock()
				err := cmd.Start()
				victim = cmd.Process
				mu.Unlock()
				require.NoError(t, err)
				return cmd.Wait()
			}
			require.ErrorContains(t, start(), "killed")
			pass(t, db, time.Minute) // its leases end
			for _, column := range []string{"last_due_at", "locked_until"} {
				sqlExec(t, db, "UPDATE bc_job_lease SET "+column+" = "+ago(t, db, time.Minute))
			}
			require.NoError(t, start())
			pass(t, db, time.Minute)
			require.NoError(t, start())
			require.Len(t, ids, 2, "again, and then no more")
			require.Equal(t, ids[0], ids[1])
			require.NotEmpty(t, ids[0])
		})
	}
}
