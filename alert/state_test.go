package alert_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/alert"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
	"github.com/bluecone-go/bluecone/schedule"
)

// pass lets time go by for the alerts: all their times are that much earlier.
func pass(t *testing.T, db *bun.DB, d time.Duration) {
	t.Helper()
	for _, column := range []struct{ table, name string }{
		{"bc_alert", "first_seen_at"},
		{"bc_alert", "last_seen_at"},
		{"bc_alert", "next_notice_at"},
		{"bc_alert", "resolved_at"},
		{"bc_alert_message", "next_retry_at"},
		{"bc_alert_message", "created_at"},
	} {
		earlier := map[string]string{
			"mysql":  "%[1]s - INTERVAL %[2]d MICROSECOND",
			"pg":     "%[1]s - %[2]d * INTERVAL '1 microsecond'",
			"sqlite": "(strftime('%%Y-%%m-%%d %%H:%%M:%%f', %[1]s, '-' || (%[2]d / 1000000.0) || ' seconds') || '000')",
		}[db.Dialect().Name().String()]
		sqlExec(t, db, "UPDATE "+column.table+" SET "+column.name+" = "+fmt.Sprintf(earlier, column.name, d.Microseconds())+" WHERE "+
			column.name+" IS NOT NULL")
	}
}

// One fault is one message, whoever sees it and however often, and one more when it is over.
func TestOneFaultIsOneMessageAndItsEndAnother(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		var first, second inbox
		a := newAlerter(t, db, alert.Config{Routes: to(&first), Instance: "a"})
		b := newAlerter(t, db, alert.Config{Routes: to(&second), Instance: "b"})
		delivery(t, db, "DEAD", "WalletConsumer", "order.paid", 10, time.Second)
		for range 3 {
			require.Equal(t, int64(1), look(t, a).Found)
			require.Equal(t, int64(1), look(t, b).Found)
		}
		require.Equal(t, []string{"FIRING CRITICAL dead"}, first.told())
		require.Empty(t, second.told())

		delivery(t, db, "DEAD", "WalletConsumer", "order.paid", 10, time.Second) // more of the same
		look(t, b)
		require.Empty(t, second.told())
		var n int64
		require.NoError(t, db.QueryRowContext(t.Context(), "SELECT occurrences FROM bc_alert").Scan(&n))
		require.Equal(t, int64(2), n)

		sqlExec(t, db, "UPDATE bc_event_consume_log SET status = 'SKIPPED'")
		look(t, b)
		require.Empty(t, second.told(), "it may come back")
		pass(t, db, 2*time.Minute)
		for range 2 {
			look(t, b)
		}
		require.Equal(t, []string{"RESOLVED CRITICAL dead"}, second.told())
		require.Equal(t, "WalletConsumer order.paid", second.got()[0].Subject)
		require.Contains(t, second.got()[0].Says, "2 deliveries")

		sqlExec(t, db, "UPDATE bc_event_consume_log SET status = 'DEAD'")
		look(t, a)
		require.Equal(t, []string{"FIRING CRITICAL dead", "FIRING CRITICAL dead"}, first.told(), "again is new")
		require.NotEqual(t, first.got()[0].ID, first.got()[1].ID)
	})
}

// Two instances that look at the very same time, without the lease that keeps them apart, still
// write one message.
func TestTwoInstancesAtOnceWriteOneMessage(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		var got inbox
		var all []*alert.Alerter
		for i := range 4 {
			all = append(all, newAlerter(t, db, alert.Config{Routes: to(&got), Instance: fmt.Sprint(i)}))
		}
		for _, c := range []string{"A", "B", "C"} {
			delivery(t, db, "DEAD", c, "order.paid", 10, time.Second)
		}
		var wg sync.WaitGroup
		for _, a := range all {
			wg.Go(func() {
				for alert.Observe(t.Context(), a) != nil { // a deadlock on a new row is tried again
					if t.Context().Err() != nil {
						return
					}
				}
			})
		}
		wg.Wait()
		var n int
		require.NoError(t, db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM bc_alert_message").Scan(&n))
		require.Equal(t, 3, n)
		for { // and whoever is refused the lease leaves it to the one who has it
			_, err := all[0].RunOnce(t.Context())
			if !errors.Is(err, schedule.ErrBusy) {
				require.NoError(t, err)
				break
			}
		}
		require.Len(t, got.got(), 3)
	})
}

// What lasts is repeated, less and less often, rises, and then concerns further sinks.
func TestWhatLastsIsRepeatedAndRises(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		var team, boss inbox
		routes := []alert.Route{{Name: "team", Sink: &team}, {Name: "boss", Sink: &boss, Least: alert.Critical}}
		a := newAlerter(t, db, alert.Config{Routes: routes})
		registered(t, db, "WalletConsumer", 0, "paused_until", ago(t, db, -1000*time.Hour))
		after := func(d time.Duration) {
			t.Helper()
			pass(t, db, d)
			look(t, a)
			look(t, a)
		}
		after(0)
		after(59 * time.Minute)
		require.Equal(t, []string{"FIRING WARN paused"}, team.told())
		require.Empty(t, boss.told())
		after(2 * time.Minute)
		require.Equal(t, []string{"ESCALATED CRITICAL paused"}, boss.told())
		after(58 * time.Minute)
		require.Len(t, team.told(), 2)
		after(2 * time.Minute) // 2 h
		require.Equal(t, []string{"FIRING WARN paused", "ESCALATED CRITICAL paused", "REMINDER CRITICAL paused"}, team.told())
		after(3 * time.Hour)
		require.Len(t, team.told(), 3)
		after(61 * time.Minute) // 4 h later
		require.Len(t, team.told(), 4)
		after(7 * time.Hour)
		require.Len(t, team.told(), 4)
		after(61 * time.Minute) // 8 h later
		require.Len(t, team.told(), 5)
		for range 5 {
			after(24 * time.Hour)
		}
		require.Len(t, team.told(), 10, "in the end once a day")
		sqlExec(t, db, "UPDATE bc_consumer SET paused_until = NULL")
		after(2 * time.Minute)
		require.Equal(t, "RESOLVED CRITICAL paused", team.told()[10])
		require.Len(t, boss.told(), 10, "everything but the first, when it was a WARN")
		require.Equal(t, "RESOLVED CRITICAL paused", boss.told()[len(boss.told())-1])
	})
}

// Neither rises nor is repeated what is not to.
func TestNeitherRisesNorIsRepeated(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		var got inbox
		a := newAlerter(t, db, alert.Config{Routes: to(&got), EscalateAfter: -1, RemindEvery: -1})
		registered(t, db, "WalletConsumer", 0, "paused_until", ago(t, db, -1000*time.Hour))
		for range 3 {
			look(t, a)
			pass(t, db, 100*time.Hour)
		}
		require.Len(t, got.got(), 1)
	})
}

// What is over and told is removed in the end, and what nobody has taken is given up.
func TestOldAlertsAreRemoved(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		var got, down inbox
		down.fail(errDown)
		a := newAlerter(t, db, alert.Config{Routes: to(&got, &down), Keep: time.Hour})
		delivery(t, db, "DEAD", "WalletConsumer", "order.paid", 10, time.Second)
		look(t, a)
		sqlExec(t, db, "DELETE FROM bc_event_consume_log")
		pass(t, db, 2*time.Minute)
		look(t, a)
		pass(t, db, 2*time.Hour)
		look(t, a)
		for _, table := range []string{"bc_alert", "bc_alert_message"} {
			var n int
			require.NoError(t, db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+table).Scan(&n))
			require.Zero(t, n, table)
		}
	})
}

// An alerter that runs beside others looks by itself.
func TestRunLooksByItself(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		var got inbox
		delivery(t, db, "DEAD", "WalletConsumer", "order.paid", 10, time.Second)
		var all []*alert.Alerter
		for i := range 2 {
			all = append(all, newAlerter(t, db, alert.Config{Routes: to(&got), Cron: "* * * * * ?", Instance: fmt.Sprint(i)}))
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var wg sync.WaitGroup
		for _, a := range all {
			wg.Go(func() { _ = a.Run(ctx) })
		}
		require.Eventually(t, func() bool {
			var n int
			err := db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM bc_job_run WHERE status = 'SUCCESS'").Scan(&n)
			return err == nil && n >= 3
		}, time.Minute, 20*time.Millisecond)
		cancel()
		wg.Wait()
		require.Equal(t, []string{"FIRING CRITICAL dead"}, got.told())
	})
}

// All mistakes are told at once, with the names of their fields.
func TestMistakesAreToldAtOnce(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t, "sqlite")
	ob, err := outbox.New(db, outbox.Config{Logger: quiet})
	require.NoError(t, err)
	_, err = alert.New(db, ob, alert.Config{
		Cron: "x", Jobs: map[string]string{"j": "y"}, Keep: -1, SendTimeout: time.Hour, Limits: alert.LimitsConfig{FailureRatio: 2},
		Routes:    []alert.Route{{Name: "a b", Sink: &inbox{}}, {Name: "c", Least: "LOUD"}, {Name: "c", Sink: &inbox{}}},
		Overrides: []alert.OverrideConfig{{Limits: alert.LimitsConfig{FailureWindow: time.Hour}}},
	})
	for _, s := range []string{
		"Cron", `Jobs["j"]`, "Keep", "SendTimeout", "FailureRatio", "Routes[0].Name", "Routes[1].Sink",
		"Routes[1].Least", `two have the name "c"`, "Overrides[0].Limits.FailureWindow",
	} {
		require.ErrorContains(t, err, s)
	}
	_, err = alert.New(nil, ob, alert.Config{})
	require.ErrorContains(t, err, "db")
}
