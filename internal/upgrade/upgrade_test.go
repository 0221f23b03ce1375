package upgrade_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/internal/upgrade/program"
	"github.com/bluecone-go/bluecone/invariant"
	"github.com/bluecone-go/bluecone/migrations"
)

// patience is how long the test waits for what must come.
const patience = 5 * time.Minute

// The tables of the release before have events, deliveries and registrations in every state. Instances of that release
// run while migrations.Up changes the tables, and beside instances of this release until they are stopped; one of each is
// killed. Nothing is lost, nothing happens twice, each consumer sees the events of an aggregate in their order.
func TestRollingUpgradeFromTheReleaseBefore(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it builds the release before")
	}
	old := oldProgram(t)
	for _, name := range testdb.Dialects() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := newUpgrade(t, name, old)
			u.fill()
			u.refuseInTheMiddleOfARename()
			u.roll()
			u.judge()
		})
	}
}

// upgrade is a deployment whose release changes.
type upgrade struct {
	t    *testing.T
	dsn  string
	db   *bun.DB
	d    dialect.Dialect
	old  string
	mu   sync.Mutex
	want map[string]int // effects, by consumer
	held map[string]int // deliveries that a killed instance of the release before had leased, and so counted: how often
}

func newUpgrade(t *testing.T, name, old string) *upgrade {
	t.Helper()
	dsn := testdb.DSN(t, name)
	u := &upgrade{t: t, dsn: dsn, db: testdb.OpenDSN(t, dsn), old: old, want: make(map[string]int), held: make(map[string]int)}
	var err error
	u.d, err = dialect.Of(u.db)
	require.NoError(t, err)
	id := map[string]string{
		"mysql": "BIGINT AUTO_INCREMENT PRIMARY KEY", "postgres": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
		"sqlite": "INTEGER PRIMARY KEY AUTOINCREMENT",
	}
	u.exec("CREATE TABLE effect (id " + id[u.d.Name] + ", consumer VARCHAR(64) NOT NULL, event_id VARCHAR(64) NOT NULL, aggregate " +
		"VARCHAR(64) NOT NULL, seq INT NOT NULL, node VARCHAR(32) NOT NULL)")
	return u
}

func (u *upgrade) exec(query string, args ...any) {
	u.t.Helper()
	_, err := u.db.ExecContext(context.Background(), query, args...)
	require.NoError(u.t, err, query)
}

func (u *upgrade) texts(query string, args ...any) (out []string) {
	u.t.Helper()
	rows, err := u.db.QueryContext(context.Background(), query, args...)
	require.NoError(u.t, err, query)
	defer rows.Close()
	for rows.Next() {
		var s string
		require.NoError(u.t, rows.Scan(&s))
		out = append(out, s)
	}
	require.NoError(u.t, rows.Err())
	return out
}

func (u *upgrade) count(query string, args ...any) (n int) {
	u.t.Helper()
	require.NoError(u.t, u.db.QueryRowContext(context.Background(), query, args...).Scan(&n), query)
	return n
}

// skipping skips what waits for a consumer until a query counts something: what was claimed before a consumer was retired
// may be put off for it a moment later.
func (u *upgrade) skipping(p *process, consumer, query string) {
	u.t.Helper()
	for over := time.Now().Add(patience); u.count(query) == 0; <-time.After(100 * time.Millisecond) {
		require.True(u.t, time.Now().Before(over), "it never comes: %s\n%s", query, strings.Join(u.state(), "\n"))
		for _, id := range u.texts("SELECT event_id FROM bc_event_consume_log WHERE consumer_name = ? AND status = 'PENDING' ORDER BY id",
			consumer) {
			p.do("skip %s %s", id, consumer)
		}
	}
}

// until waits until a query counts something.
func (u *upgrade) until(query string, args ...any) {
	u.t.Helper()
	for over := time.Now().Add(patience); u.count(query, args...) == 0; <-time.After(20 * time.Millisecond) {
		require.True(u.t, time.Now().Before(over), "it never comes: %s %v\n%s", query, args, strings.Join(u.state(), "\n"))
	}
}

// delivered waits until the consumer's delivery of the events of an aggregate has the status.
func (u *upgrade) delivered(aggregate, consumer, status string) {
	u.t.Helper()
	u.until("SELECT COUNT(*) FROM bc_event_consume_log WHERE aggregate_id = ? AND consumer_name = ? AND status = ?", aggregate, consumer,
		status)
}

func (u *upgrade) eventID(aggregate string) string {
	u.t.Helper()
	ids := u.texts("SELECT event_id FROM bc_outbox_event WHERE aggregate_id = ? ORDER BY id LIMIT 1", aggregate)
	require.Len(u.t, ids, 1, aggregate)
	return ids[0]
}

// state is what is open.
func (u *upgrade) state() []string {
	u.t.Helper()
	join := func(columns ...string) string {
		if u.d.Name == "mysql" {
			return "CONCAT(" + strings.Join(columns, ", ' ', ") + ")"
		}
		return strings.Join(columns, " || ' ' || ")
	}
	out := u.texts("SELECT s FROM (SELECT id, " + join("aggregate_id", "event_type", "status", "COALESCE(locked_by, '-')",
		"COALESCE(last_error, '-')") +
		" AS s FROM bc_outbox_event WHERE status <> 'SENT') AS e ORDER BY id")
	return append(out, u.texts("SELECT s FROM (SELECT id, "+join("aggregate_id", "consumer_name", "status", "COALESCE(locked_by, "+
		"'-')", "COALESCE(error_message, '-')")+
		" AS s FROM bc_event_consume_log WHERE status NOT IN ('SUCCESS', 'SKIPPED')) AS l ORDER BY id")...)
}

// saved has a process save an event, and remembers who must get it.
func (u *upgrade) saved(p *process, consumers string, format string, args ...any) {
	u.t.Helper()
	p.do(format, args...)
	u.mu.Lock()
	defer u.mu.Unlock()
	for c := range strings.FieldsSeq(consumers) {
		u.want[c]++
	}
}

const everybody = "Wallet Points Mail Audit"

// fill has programs of the release before bring rows into every state.
func (u *upgrade) fill() {
	u.t.Helper()
	purse := launch(u.t, u.old, u.dsn, "old0", program.EnvFormer+"=1")
	u.makeOldTables(purse)
	purse.do("run") // the consumer Wallet is still called Purse
	u.saved(purse, everybody, "save purse 1")
	u.saved(purse, everybody, "save purse-fails 1 Wallet:fail")
	u.saved(purse, everybody, "save purse-dead 1 Wallet:dead")
	u.delivered("purse", "Purse", "SUCCESS")
	u.delivered("purse-fails", "Purse", "FAILED")
	u.delivered("purse-dead", "Purse", "DEAD")
	purse.leave()

	p := launch(u.t, u.old, u.dsn, "old1")
	p.do("run")
	u.everyOutcome(p)
	u.saved(p, everybody, "save hangs-at-once 1 Wallet:hangs-at-once")
	u.until("SELECT COUNT(*) FROM bc_outbox_event WHERE aggregate_id = 'hangs-at-once' AND status = 'DISPATCHING'")
	u.killOld(p)                          // with leases, and a row that says that it runs
	p = launch(u.t, u.old, u.dsn, "old2") // another, because on SQLite a handler that hangs stops all others
	p.do("run")
	u.saved(p, everybody, "save hangs 1 Points:hang")
	u.delivered("hangs", "Points", "PROCESSING")
	u.killOld(p)

	gone := launch(u.t, u.old, u.dsn, "gone", program.EnvGone+"=1")
	gone.do("run") // a consumer of which no instance is left
	gone.leave()
	saver := launch(u.t, u.old, u.dsn, "saver")
	for seq := range 3 {
		u.saved(saver, everybody, "save new %d", seq)
	}
	u.saved(saver, everybody, "keyed new 3 new-key")
	u.saved(saver, everybody, "later soon 1 - 8s")
	u.killOld(saver)
	u.everyState()
}

// makeOldTables makes the tables of the release before. That could not migrate on MySQL 9.6 and later, which have no MD5():
// there somebody has applied its files.
func (u *upgrade) makeOldTables(p *process) {
	u.t.Helper()
	if !u.byHand() {
		p.do("migrate")
		return
	}
	require.Contains(u.t, p.ask("migrate"), "MD5 does not exist")
	testdb.EachMigration(u.t, u.db, func(file string, apply func()) {
		if file < "0006" {
			apply()
		}
	})
}

func (u *upgrade) byHand() bool { return testdb.Server(u.t, u.db) == "mysql9" }

func (u *upgrade) everyOutcome(p *process) {
	u.t.Helper()
	for seq := range 3 {
		u.saved(p, everybody, "save sent %d", seq)
	}
	u.saved(p, everybody, "keyed keyed 1 old-key")
	u.saved(p, everybody, "keyed archived 1 archived-key")
	u.saved(p, "Wallet Points Mail", "save skipped 1 Audit:skip")
	u.until("SELECT COUNT(*) FROM bc_outbox_event WHERE aggregate_id = 'archived' AND status = 'SENT'")
	old := -dialect.Micro(10 * 24 * time.Hour)
	u.exec("UPDATE bc_outbox_event SET sent_at = "+u.d.After+" WHERE aggregate_id = 'archived'", old)
	u.exec("UPDATE bc_outbox_event SET created_at = "+u.d.After, old) // retention ends at the first that is young
	p.do("retention")
	u.until("SELECT CASE WHEN COUNT(*) = 3 THEN 1 ELSE 0 END FROM bc_outbox_event WHERE aggregate_id = 'sent' AND status = 'SENT'")
	u.exec("UPDATE bc_consumer SET paused_until = "+u.d.After+" WHERE name = 'Audit@replay'", dialect.Micro(time.Hour))
	p.do("replay %s Audit", u.eventID("sent"))
	u.want["Audit@replay"]++

	u.saved(p, everybody, "save fails 1 Points:fail")
	u.saved(p, everybody, "save fails 2") // waits behind it
	u.saved(p, everybody, "save dead 1 Points:dead")
	u.saved(p, everybody, "save dead 2")
	u.saved(p, "Wallet Mail Audit", "save given-up 1 Points:dead")
	u.saved(p, everybody, "save fixed 1 Points:dead")
	u.delivered("given-up", "Points", "DEAD")
	p.do("skip %s Points", u.eventID("given-up"))
	u.delivered("fixed", "Points", "DEAD")
	p.do("retry %s Points", u.eventID("fixed"))
	p.do("pause Mail")
	for seq := 1; u.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE aggregate_id = 'paused' AND consumer_name = 'Mail' "+
		"AND status = 'PENDING'") == 0; seq++ {
		u.saved(p, everybody, "save paused %d", seq) // until the instance knows of the pause
	}
	u.saved(p, "Orphans", "orphan orphan 1")
	u.saved(p, "", "later late 1 - 10h")
	u.until("SELECT COUNT(*) FROM bc_outbox_event WHERE aggregate_id = 'orphan' AND status = 'SCHEDULED' AND lock_version > 0")
}

// everyState makes sure that the upgrade has something of everything before it. Then what has failed is due.
func (u *upgrade) everyState() {
	u.t.Helper()
	require.Subset(u.t, u.texts("SELECT DISTINCT status FROM bc_outbox_event"), []string{"NEW", "SCHEDULED", "DISPATCHING", "SENT", "FAILED"})
	require.Subset(u.t, u.texts("SELECT DISTINCT status FROM bc_event_consume_log"),
		[]string{"SUCCESS", "PENDING", "FAILED", "PROCESSING", "DEAD", "SKIPPED"})
	for _, table := range []string{
		"bc_delivery_attempt", "bc_audit_log", "bc_instance", "bc_outbox_event_archive",
		"bc_event_consume_log_archive", "bc_consumer_type", "bc_job_run",
	} {
		require.NotZero(u.t, u.count("SELECT COUNT(*) FROM "+table), table)
	}
	require.Equal(u.t, []string{"Audit@replay", "Mail"}, u.texts("SELECT name FROM bc_consumer WHERE paused_until IS NOT NULL ORDER BY name"))
	require.Equal(u.t, []string{"Wallet"}, u.texts("SELECT name FROM bc_consumer WHERE aliases LIKE '%Purse%'"))
	if !u.byHand() {
		require.Equal(u.t, 5, u.count("SELECT MAX(version) FROM bc_schema_version"))
	}
	u.exec("UPDATE bc_event_consume_log SET next_retry_at = " + u.d.Now + " WHERE status = 'FAILED'")
}

// refuseInTheMiddleOfARename makes sure that Up refuses while a consumer has both names, and that it has changed no row.
func (u *upgrade) refuseInTheMiddleOfARename() {
	u.t.Helper()
	err := migrations.Up(u.t.Context(), u.db)
	require.ErrorContains(u.t, err, `instances run the consumer "Wallet" under its former name "Purse" too, or did`)
	u.exec("UPDATE bc_consumer SET seen_at = "+u.d.After+" WHERE name = 'Purse'", -dialect.Micro(time.Hour))
}

// roll is the upgrade: old instances run, the tables change, new instances start, the old ones are stopped.
func (u *upgrade) roll() {
	t := u.t
	t.Helper()
	fixed := program.EnvFixed + "=1"
	oldA, oldB := launch(t, u.old, u.dsn, "oldA", fixed), launch(t, u.old, u.dsn, "oldB", fixed)
	oldA.do("run")
	oldB.do("run")
	newA := launch(t, "", u.dsn, "newA", fixed)
	newA.do("migrate")
	if !u.byHand() {
		require.Contains(t, oldB.ask("migrate"), "the database is ahead", "a process of the release before that migrates is refused")
	}
	newA.do("run")

	u.sideBySide("first", newA, oldA, oldB)
	u.killOld(oldA)
	oldC := launch(t, u.old, u.dsn, "oldC", fixed) // the release before may be started again
	oldC.do("run")
	u.sideBySide("second", oldC, newA, oldB)
	newA.kill()
	newB := launch(t, "", u.dsn, "newB", fixed)
	newB.do("run")
	u.sideBySide("third", newB, oldB, oldC)
	oldB.leave()
	oldC.leave()

	newB.do("resume Mail")
	u.exec("UPDATE bc_consumer SET paused_until = NULL WHERE name = 'Audit@replay'")
	for _, id := range u.texts("SELECT event_id FROM bc_event_consume_log WHERE status = 'DEAD' ORDER BY id") {
		newB.do("retry %s", id)
	}
	newB.do("retire Gone")
	u.skipping(newB, "Gone", "SELECT CASE WHEN (SELECT COUNT(*) FROM bc_outbox_event WHERE status <> 'SENT' AND aggregate_id <> 'late') + "+
		"(SELECT COUNT(*) FROM bc_event_consume_log WHERE status NOT IN ('SUCCESS', 'SKIPPED')) = 0 THEN 1 ELSE 0 END")
	newB.leave()
}

// sideBySide has processes of both releases save the events of each aggregate in turn, and keyed events at the same time.
func (u *upgrade) sideBySide(round string, all ...*process) {
	u.t.Helper()
	var clients sync.WaitGroup
	for client := range 4 {
		clients.Go(func() {
			for seq := range 12 {
				u.saved(all[(client+seq)%len(all)], everybody, "save %s-%d %d", round, client, seq)
			}
		})
	}
	clients.Wait()
	for key := range 6 {
		for _, p := range all {
			clients.Go(func() { u.keyed(p, round, key) })
		}
		clients.Wait()
		u.want["Wallet"]++
		u.want["Points"]++
		u.want["Mail"]++
		u.want["Audit"]++
	}
	for _, p := range all { // what the release before has saved is known
		u.keyedAgain(p)
	}
}

// keyed saves a keyed event that others save at the same time. A database may refuse one of them, as a deadlock or a
// duplicate: it has to be run again.
func (u *upgrade) keyed(p *process, round string, key int) {
	for over := time.Now().Add(patience); time.Now().Before(over); {
		answer := p.ask("keyed %s-key 1 %s-%d", round, round, key)
		if answer == "ok" {
			return
		}
		u.t.Log(answer)
	}
	u.t.Errorf("%s-%d is never saved", round, key)
}

func (u *upgrade) keyedAgain(p *process) {
	u.t.Helper()
	p.do("keyed keyed 1 old-key")
	p.do("keyed new 3 new-key")
}

// judge looks at what the consumers have got.
func (u *upgrade) judge() {
	u.t.Helper()
	got := make(map[string]int)
	for _, c := range u.texts("SELECT consumer FROM effect") {
		got[c]++
	}
	require.Equal(u.t, u.want, got, "effects by consumer")
	require.Zero(u.t, u.count("SELECT COUNT(*) FROM (SELECT consumer, event_id FROM effect GROUP BY consumer, event_id "+
		"HAVING COUNT(*) > 1) AS x"), "an effect happened twice")
	require.Empty(u.t, u.texts("SELECT DISTINCT a.consumer FROM effect a JOIN effect b ON b.consumer = a.consumer "+
		"AND b.aggregate = a.aggregate AND b.id > a.id AND b.seq < a.seq "+
		"WHERE a.consumer NOT LIKE 'Audit%'"), "the order of an aggregate was broken")
	found, err := invariant.Check(u.t.Context(), u.db, invariant.Config{})
	require.NoError(u.t, err)
	require.Empty(u.t, slices.DeleteFunc(found, u.wasCountedByOld))
	require.Equal(u.t, []string{"late"}, u.texts("SELECT aggregate_id FROM bc_outbox_event WHERE status = 'SCHEDULED'"))
	u.t.Log(fmt.Sprint(got))
}
