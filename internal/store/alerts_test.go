package store_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

// alerts is a fixture of the alerts of one database.
type alerts struct {
	store.Alerts

	t  *testing.T
	db *bun.DB
	d  dialect.Dialect
}

func eachAlerts(t *testing.T, fn func(f alerts)) {
	t.Helper()
	eachDB(t, func(t *testing.T, db *bun.DB, d dialect.Dialect) { fn(alerts{store.NewAlerts(d), t, db, d}) })
}

func (f alerts) inTx(fn func(ctx context.Context, tx bun.Tx) error) {
	f.t.Helper()
	require.NoError(f.t, f.db.RunInTx(f.t.Context(), f.d.ReadCommitted(), fn))
}

// fire adds an alert and makes it FIRING.
func (f alerts) fire(fingerprint, rule, level string) {
	f.t.Helper()
	f.inTx(func(ctx context.Context, tx bun.Tx) error {
		err := f.Add(ctx, tx, store.NewAlert{Fingerprint: fingerprint, Rule: rule, Subject: "s", Consumer: "C", EventType: "a.b"})
		if err != nil {
			return err
		}
		return f.Fire(ctx, tx, fingerprint, store.Alert{Level: level, Episode: 1, Since: 1_000_000, First: 2_000_000},
			store.Observed{Count: 3, Says: "it burns", Remedy: "water"})
	})
}

// add adds a message for the sink.
func (f alerts) add(m store.AlertMessage) {
	f.t.Helper()
	f.inTx(func(ctx context.Context, tx bun.Tx) error { return f.AddMessage(ctx, tx, "sink", m) })
}

func (f alerts) due(most int) []store.AlertMessage {
	f.t.Helper()
	due, err := f.DueMessages(f.t.Context(), f.db, "sink", most)
	require.NoError(f.t, err)
	return due
}

// An alert is RESOLVED when it is added, keeps what Fire says of it, and adding it again changes nothing.
func TestAnAlertKeepsItsState(t *testing.T) {
	t.Parallel()
	eachAlerts(t, func(f alerts) {
		f.inTx(func(ctx context.Context, tx bun.Tx) error {
			require.NoError(f.t, f.Add(ctx, tx, store.NewAlert{Fingerprint: "f", Rule: "dead", Subject: "s"}))
			is, now, err := f.Lock(ctx, tx, "f")
			require.NoError(f.t, err)
			require.Equal(f.t, store.Alert{Level: "WARN", Since: is.Since, First: is.First, Last: is.Last}, is)
			require.InDelta(f.t, now, is.First, float64(time.Hour.Microseconds()))
			fired := store.Alert{
				Level: "CRITICAL", Episode: 2, Notices: 3, Reminders: 1, Since: 5_000_000, First: 6_000_000, Next: now + 1_000_000,
			}
			require.NoError(f.t, f.Fire(ctx, tx, "f", fired, store.Observed{Count: 7, Says: "seven", Remedy: "none"}))
			require.NoError(f.t, f.Add(ctx, tx, store.NewAlert{Fingerprint: "f", Rule: "dead", Subject: "s"}))
			is, _, err = f.Lock(ctx, tx, "f")
			require.NoError(f.t, err)
			fired.IsFiring, fired.Last = true, is.Last
			require.InDelta(f.t, fired.Next, is.Next, 1000, "SQLite keeps milliseconds")
			fired.Next = is.Next
			require.Equal(f.t, fired, is)
			seen, err := f.LastObserved(ctx, tx, "f")
			require.NoError(f.t, err)
			require.Equal(f.t, store.Observed{Count: 7, Says: "seven"}, seen)
			fired.Next = 0
			require.NoError(f.t, f.Fire(ctx, tx, "f", fired, store.Observed{}))
			is, _, err = f.Lock(ctx, tx, "f")
			require.NoError(f.t, err)
			require.Zero(f.t, is.Next, "no reminder is due any more")
			return nil
		})
		require.Equal(f.t, 1, countRows(f.t, f.db, "bc_alert"))
	})
}

// What nobody has seen for long is listed, resolved, and later removed; what was seen lately stays.
func TestAlertsThatNobodySeesAreResolvedAndRemoved(t *testing.T) {
	t.Parallel()
	eachAlerts(t, func(f alerts) {
		ctx := f.t.Context()
		f.fire("old", "dead", "WARN")
		f.fire("older", "dead", "WARN")
		f.fire("new", "lag", "CRITICAL")
		unseen := func(fingerprint string, ago time.Duration) {
			testdb.Exec(f.t, f.db, "UPDATE bc_alert SET last_seen_at = "+f.d.After+" WHERE fingerprint = ?", -dialect.Micro(ago), fingerprint)
		}
		unseen("old", 2*time.Hour)
		unseen("older", 3*time.Hour)
		gone, err := f.Unseen(ctx, f.db, time.Hour, 10)
		require.NoError(f.t, err)
		require.Equal(f.t, []string{"older", "old"}, gone)
		gone, err = f.Unseen(ctx, f.db, time.Hour, 1)
		require.NoError(f.t, err)
		require.Equal(f.t, []string{"older"}, gone)

		firing, err := f.CountFiring(ctx, f.db)
		require.NoError(f.t, err)
		require.ElementsMatch(f.t,
			[]store.FiringAlerts{{Rule: "dead", Level: "WARN", Count: 2}, {Rule: "lag", Level: "CRITICAL", Count: 1}}, firing)
		f.inTx(func(ctx context.Context, tx bun.Tx) error { return f.Resolve(ctx, tx, "older", 4) })
		f.inTx(func(ctx context.Context, tx bun.Tx) error {
			is, _, err := f.Lock(ctx, tx, "older")
			require.False(f.t, is.IsFiring)
			require.EqualValues(f.t, 4, is.Notices)
			return err
		})
		require.NoError(f.t, f.RemoveResolved(ctx, f.db, 4*time.Hour))
		require.Equal(f.t, 3, countRows(f.t, f.db, "bc_alert"), "too young")
		require.NoError(f.t, f.RemoveResolved(ctx, f.db, time.Hour))
		require.Equal(f.t, 2, countRows(f.t, f.db, "bc_alert"), "old is FIRING still")
	})
}

// Messages are due the critical ones first, one about each alert at a time, with what their alert knows.
func TestMessagesAreDueInTheirOrder(t *testing.T) {
	t.Parallel()
	eachAlerts(t, func(f alerts) {
		f.fire("warn", "lag", "WARN")
		f.add(store.AlertMessage{Fingerprint: "warn", Notice: 1, Kind: "firing", Level: "WARN", Count: 2, Says: "late", Since: 3_000_000})
		f.add(store.AlertMessage{Fingerprint: "warn", Notice: 1, Kind: "firing", Level: "WARN", Count: 9, Says: "the same notice"})
		f.add(store.AlertMessage{Fingerprint: "warn", Notice: 2, Kind: "resolved", Level: "WARN"})
		f.add(store.AlertMessage{Fingerprint: "unknown", Notice: 1, Kind: "firing", Level: "CRITICAL"})
		due := f.due(10)
		require.Len(f.t, due, 2)
		require.Equal(f.t, []string{"unknown", ""}, []string{due[0].Fingerprint, due[0].Rule}, "its alert is gone")
		first := due[1]
		require.Equal(f.t, store.AlertMessage{
			Fingerprint: "warn", Notice: 1, Kind: "firing", Level: "WARN", Count: 2, Says: "late", Since: 3_000_000,
			ID: first.ID, Version: first.Version, Rule: "lag", Subject: "s", Consumer: "C", EventType: "a.b",
		}, first)
		require.Len(f.t, f.due(1), 1)
		other, err := f.DueMessages(f.t.Context(), f.db, "another", 10)
		require.NoError(f.t, err)
		require.Empty(f.t, other)
	})
}

// Only one claims a message; a failed one waits for its pause, a sent one waits no more.
func TestAMessageIsClaimedOnce(t *testing.T) {
	t.Parallel()
	eachAlerts(t, func(f alerts) {
		ctx := f.t.Context()
		f.add(store.AlertMessage{Fingerprint: "f", Notice: 1, Kind: "firing", Level: "WARN"})
		m := f.due(1)[0]
		mine, err := f.ClaimMessage(ctx, f.db, m, "me", time.Hour)
		require.NoError(f.t, err)
		require.True(f.t, mine)
		mine, err = f.ClaimMessage(ctx, f.db, m, "another", time.Hour)
		require.NoError(f.t, err)
		require.False(f.t, mine, "somebody has claimed it since it was read")
		require.Empty(f.t, f.due(1), "it is due after the pause")
		isWaiting := func(sink string) (yes bool) {
			f.inTx(func(ctx context.Context, tx bun.Tx) (err error) {
				yes, err = f.IsWaiting(ctx, tx, "f", sink)
				return err
			})
			return yes
		}
		require.NoError(f.t, f.MessageFailed(ctx, f.db, m.ID, "no route"))
		require.True(f.t, isWaiting("sink"))
		require.False(f.t, isWaiting("another"))
		testdb.Exec(f.t, f.db, "UPDATE bc_alert_message SET next_retry_at = "+f.d.Now)
		require.EqualValues(f.t, 1, f.due(1)[0].Attempts)
		require.NoError(f.t, f.MessageSent(ctx, f.db, m.ID))
		require.False(f.t, isWaiting("sink"))
		var why string
		require.NoError(f.t, f.db.QueryRowContext(ctx, "SELECT COALESCE(last_error, 'none') FROM bc_alert_message").Scan(&why))
		require.Equal(f.t, "none", why)
		require.NoError(f.t, f.MessageFailed(ctx, f.db, m.ID, "too late"))
		require.False(f.t, isWaiting("sink"), "what is SENT stays so")
	})
}

// Old messages go by their state, and the longest wait is that of the oldest that waits.
func TestOldMessagesAreRemoved(t *testing.T) {
	t.Parallel()
	eachAlerts(t, func(f alerts) {
		ctx := f.t.Context()
		wait, err := f.LongestWait(ctx, f.db)
		require.NoError(f.t, err)
		require.Zero(f.t, wait)
		for n := int64(1); n <= 3; n++ {
			f.add(store.AlertMessage{Fingerprint: "f", Notice: n, Kind: "firing", Level: "WARN"})
		}
		testdb.Exec(f.t, f.db, "UPDATE bc_alert_message SET created_at = "+f.d.After+" WHERE notice < 3", -dialect.Micro(2*time.Hour))
		testdb.Exec(f.t, f.db, "UPDATE bc_alert_message SET state = 'SENT' WHERE notice = 1")
		wait, err = f.LongestWait(ctx, f.db)
		require.NoError(f.t, err)
		require.InDelta(f.t, 2*time.Hour, wait, float64(30*time.Minute))
		for state, want := range map[string]int64{"SENT": 1, "WAITING": 1} {
			n, err := f.RemoveMessages(ctx, f.db, state, time.Hour)
			require.NoError(f.t, err)
			require.Equal(f.t, want, n, state)
		}
		require.Equal(f.t, 1, countRows(f.t, f.db, "bc_alert_message"))
	})
}
