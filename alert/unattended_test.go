package alert_test

import (
	"testing"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/alert"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

// takes saves that a consumer takes a type, and when an instance last said so.
func takes(t *testing.T, db *bun.DB, consumer, eventType string, seen time.Duration) {
	t.Helper()
	sqlExec(t, db, "INSERT INTO bc_consumer_type (consumer_name, event_type, seen_at) VALUES (?, ?, "+ago(t, db, seen)+")",
		consumer, eventType)
}

// backfill saves an operation that has moved some time ago.
func backfill(t *testing.T, db *bun.DB, action, state, consumer string, moved time.Duration, lockedUntil string) {
	t.Helper()
	at := ago(t, db, moved)
	sqlExec(t, db, "INSERT INTO bc_bulk_operation (operation_id, action, request, state, actor, reason, consumer_name, locked_until, "+
		"created_at, updated_at) VALUES (?, ?, '{}', ?, 'ann', 'a test', ?, "+lockedUntil+", "+at+", "+at+")", unique(), action, state, consumer)
}

// unattendedScenes are of consumers that run, and of work for them that nobody does, or that only seems so.
func unattendedScenes() map[string]scene {
	const wallet, past = "WalletConsumer", "a backfill of WalletConsumer "
	runs := func(t *testing.T, db *bun.DB, more ...string) {
		t.Helper()
		registered(t, db, wallet, 0, more...)
		takes(t, db, wallet, "order.refunded", 0)
	}
	return map[string]scene{
		"a type is gone": {
			wanted: []string{alert.RuleTypeGone},
			says:   "2 deliveries of order.paid wait for WalletConsumer, and no running release of it takes the type: for 20 min",
			set: func(t *testing.T, db *bun.DB) {
				runs(t, db)
				takes(t, db, wallet, "order.paid", 20*minute+5*time.Second)
				delivery(t, db, "PENDING", wallet, "order.paid", 0, 20*minute)
				delivery(t, db, "FAILED", wallet, "order.paid", 1, minute)
				delivery(t, db, "FAILED", wallet, "order.refunded", 1, minute)
			},
		},
		"a type is gone since a moment": {set: func(t *testing.T, db *bun.DB) {
			runs(t, db)
			takes(t, db, wallet, "order.paid", 5*minute)
			delivery(t, db, "PENDING", wallet, "order.paid", 0, 10*minute)
		}},
		"a type is gone, and its consumer is paused": {set: func(t *testing.T, db *bun.DB) {
			pausedLately(t, db, 0)
			takes(t, db, wallet, "order.paid", 20*minute)
			delivery(t, db, "PENDING", wallet, "order.paid", 0, 20*minute)
		}},
		"nobody runs replays": {
			wanted: []string{alert.RuleReplay},
			says:   "1 replay waits for WalletConsumer, of which no instance runs replays: for 20 min",
			set: func(t *testing.T, db *bun.DB) {
				runs(t, db)
				registered(t, db, wallet+"@replay", 20*minute+5*time.Second)
				delivery(t, db, "PENDING", wallet+"@replay", "order.refunded", 0, 25*minute)
			},
		},
		"nobody runs replays since a moment": {set: func(t *testing.T, db *bun.DB) {
			runs(t, db)
			registered(t, db, wallet+"@replay", 5*minute)
			delivery(t, db, "PENDING", wallet+"@replay", "order.refunded", 0, 10*minute)
		}},
		"a backfill has failed": {
			wanted: []string{alert.RulePast}, says: past + "has failed, and later events of its aggregates wait for it: for 20 min",
			set: func(t *testing.T, db *bun.DB) {
				runs(t, db)
				backfill(t, db, "backfill", "FAILED", wallet, 20*minute+5*time.Second, "NULL")
			},
		},
		"nobody goes on with a backfill": {
			wanted: []string{alert.RulePast}, says: past + "has not moved",
			set: func(t *testing.T, db *bun.DB) {
				runs(t, db)
				backfill(t, db, "start", "RUNNING", wallet, 20*minute, "NULL")
				backfill(t, db, "backfill", "RUNNING", wallet, 30*minute, ago(t, db, 29*minute))
			},
		},
		"a backfill waits for another operation, and one for its consumer": {set: func(t *testing.T, db *bun.DB) {
			runs(t, db)
			backfill(t, db, "backfill", "RUNNING", wallet, 20*minute, "NULL")
			backfill(t, db, "backfill", "RUNNING", "PointsConsumer", 0, ago(t, db, -minute))
			backfill(t, db, "start", "RUNNING", wallet, 20*minute, "NULL")
			delivery(t, db, "PENDING", wallet, "order.refunded", 0, minute)
		}},
		"a backfill has failed for a consumer that is paused": {set: func(t *testing.T, db *bun.DB) {
			pausedLately(t, db, 0)
			backfill(t, db, "backfill", "FAILED", wallet, 20*minute, "NULL")
		}},
		"a backfill may wait for ever": {
			cfg: alert.Config{Limits: alert.LimitsConfig{Unregistered: -1}},
			set: func(t *testing.T, db *bun.DB) {
				runs(t, db)
				backfill(t, db, "backfill", "FAILED", wallet, 20*minute, "NULL")
			},
		},
	}
}

// Each alert of work that nobody does comes when it should, and only then.
func TestWhatNobodyWorksOnIsAlerted(t *testing.T) {
	t.Parallel()
	for _, d := range testdb.Dialects() {
		t.Run(d, func(t *testing.T) {
			t.Parallel()
			play(t, testdb.Open(t, d), unattendedScenes())
		})
	}
}
