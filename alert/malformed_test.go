package alert_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/alert"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

// A row that is malformed in bc_alert or bc_alert_message keeps back no other alert, and no message about one.
func TestMalformedRowsKeepBackNoOtherAlert(t *testing.T) {
	t.Parallel()
	const message = "INSERT INTO bc_alert_message (fingerprint, sink, kind, level, occurrences, says, created_at, since_at, next_retry_at, " +
		"notice, attempts, lock_version) VALUES ('x', 'sink1', '?', 'CRITICAL', -1, '', PAST, PAST, PAST, "
	most := make([]string, 12) // more than a sink gets at a look
	for i := range most {
		most[i] = message + strconv.Itoa(i) + ", 2147483647, 9223372036854775807)"
	}
	for what, rows := range map[string][]string{
		"a message with attempts below zero":        {message + "1, -1, -1)"},
		"messages that cannot be counted further":   most,
		"a message that was made at no time":        {message + "1, 0, 0)", "UPDATE bc_alert_message SET since_at = NOTIME"},
		"an alert that was reminded less than once": {"UPDATE bc_alert SET reminders = -5, level = '?', next_notice_at = PAST"},
		"an alert that cannot be counted further": {"UPDATE bc_alert SET reminders = 2147483647, notices = 9223372036854775807, " +
			"episode = 9223372036854775807, lock_version = 9223372036854775807, next_notice_at = PAST"},
		"an alert that began at no time": {"UPDATE bc_alert SET since_at = NOTIME, first_seen_at = NOTIME"},
		"an alert of no rule": {"INSERT INTO bc_alert (fingerprint, rule, subject, level, state, says, remedy, since_at, first_seen_at, " +
			"last_seen_at, lock_version) VALUES ('', '', '', '', 'FIRING', '', '', PAST, PAST, PAST, 9223372036854775807)"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			testdb.Each(t, func(t *testing.T, db *bun.DB) {
				var got inbox
				a := newAlerter(t, db, alert.Config{Routes: to(&got)})
				delivery(t, db, "DEAD", "Other", "order.paid", 10, time.Second)
				look(t, a)
				past := ago(t, db, time.Hour)
				noTime := past // SQLite alone stores what is no time
				if db.Dialect().Name().String() == "sqlite" {
					noTime = "'?'"
				}
				for _, row := range rows {
					sqlExec(t, db, strings.NewReplacer("PAST", past, "NOTIME", noTime).Replace(row))
				}
				delivery(t, db, "DEAD", "Wallet", "order.paid", 10, time.Second)
				told := func(kind alert.Kind) bool {
					for range 3 {
						_, _ = a.RunOnce(t.Context()) // it may report the malformed row
					}
					for _, n := range got.got() {
						if n.Consumer == "Wallet" && n.Kind == kind {
							return true
						}
					}
					return false
				}
				require.True(t, told(alert.Firing), "the alert of the other consumer is sent")
				sqlExec(t, db, "UPDATE bc_event_consume_log SET status = 'SKIPPED' WHERE consumer_name = 'Wallet'")
				pass(t, db, 2*time.Minute)
				require.True(t, told(alert.Resolved), "and that it is over")
			})
		})
	}
}
