package alert_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/alert"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

const minute = time.Minute

// pausedLately registers a consumer that an operator has paused a minute ago, and that no instance has had for so long.
func pausedLately(t *testing.T, db *bun.DB, unseen time.Duration) {
	t.Helper()
	registered(t, db, "WalletConsumer", unseen+time.Second, "paused_until", ago(t, db, -time.Hour), "paused_by", "'ana'")
	sqlExec(t, db, "INSERT INTO bc_audit_log (actor, action, target, reason, created_at) VALUES ('ana', 'pause', 'WalletConsumer', 'x', "+
		ago(t, db, minute)+")")
}

// scene is what the tables look like, and which rules speak of it.
type scene struct {
	set    func(t *testing.T, db *bun.DB)
	cfg    alert.Config
	wanted []string
	says   string        // in the first message
	clock  time.Duration // how far this machine's is ahead
}

func scenes() map[string]scene {
	wallet := func(t *testing.T, db *bun.DB) { t.Helper(); registered(t, db, "WalletConsumer", 0) }
	return map[string]scene{
		"nothing": {set: func(*testing.T, *bun.DB) {}},
		"all is well": {set: func(t *testing.T, db *bun.DB) {
			wallet(t, db)
			event(t, db, "SENT", "order.paid", time.Hour)
			event(t, db, "NEW", "order.paid", time.Second)
			event(t, db, "SCHEDULED", "order.paid", time.Hour, "next_retry_at", ago(t, db, -time.Hour))
			delivery(t, db, "SUCCESS", "WalletConsumer", "order.paid", 1, time.Second)
			delivery(t, db, "SKIPPED", "WalletConsumer", "order.paid", 1, time.Second)
			delivery(t, db, "FAILED", "WalletConsumer", "order.paid", 2, minute)
			attempt(t, db, "WalletConsumer", minute)
			job(t, db, "lock_timeout_reaper", "SUCCESS", 5*minute)
		}},
		"a DEAD delivery": {
			wanted: []string{alert.RuleDead},
			says:   "1 delivery of order.paid to WalletConsumer is DEAD and waits for an operator",
			set: func(t *testing.T, db *bun.DB) {
				wallet(t, db)
				delivery(t, db, "DEAD", "WalletConsumer", "order.paid", 10, time.Second)
			},
		},
		"two of another type": {
			wanted: []string{alert.RuleDead}, cfg: alert.Config{
				Overrides: []alert.OverrideConfig{{EventType: "order.paid", Limits: alert.LimitsConfig{Dead: 2}}},
			},
			says: "2 deliveries of order.refunded to WalletConsumer are DEAD and wait for an operator", set: func(t *testing.T, db *bun.DB) {
				wallet(t, db)
				delivery(t, db, "DEAD", "WalletConsumer", "order.paid", 10, time.Second)
				delivery(t, db, "DEAD", "WalletConsumer", "order.refunded", 10, time.Second)
				delivery(t, db, "DEAD", "WalletConsumer", "order.refunded", 10, time.Second)
			},
		},
		"DEAD of a consumer that nobody has registered": {
			wanted: []string{alert.RuleDead},
			set: func(t *testing.T, db *bun.DB) {
				delivery(t, db, "DEAD", "Gone", "order.paid", 10, time.Second)
			},
		},
		"a DEAD event without a delivery": {
			wanted: []string{alert.RuleDead},
			says:   "1 event of the type order.paid",
			set: func(t *testing.T, db *bun.DB) {
				event(t, db, "DEAD", "order.paid", minute)
			},
		},
		"DEAD is turned off": {
			cfg: alert.Config{Limits: alert.LimitsConfig{Dead: -1}},
			set: func(t *testing.T, db *bun.DB) {
				event(t, db, "DEAD", "order.paid", minute)
				delivery(t, db, "DEAD", "Gone", "order.paid", 10, time.Second)
			},
		},
		"an old event, while others are delivered": {
			wanted: []string{alert.RuleLate},
			says:   "the oldest of 2 events of the type order.paid has been waiting for 6 min",
			set: func(t *testing.T, db *bun.DB) {
				event(t, db, "NEW", "order.paid", 6*minute+5*time.Second)
				event(t, db, "NEW", "order.paid", 3*minute)
				event(t, db, "NEW", "order.refunded", 4*minute)
				delivery(t, db, "SUCCESS", "WalletConsumer", "order.paid", 1, 10*time.Second)
			},
		},
		"an old event that has just been claimed": {set: func(t *testing.T, db *bun.DB) {
			event(t, db, "DISPATCHING", "order.paid", time.Second, "retry_count", "0")
			sqlExec(t, db, "UPDATE bc_outbox_event SET created_at = "+ago(t, db, time.Hour))
		}},
		"a delayed event that has fallen due long ago": {
			wanted: []string{alert.RuleLate, alert.RuleStalled},
			set: func(t *testing.T, db *bun.DB) {
				event(t, db, "SCHEDULED", "order.paid", time.Hour, "next_retry_at", ago(t, db, 6*minute))
			},
		},
		"a patient event type": {
			cfg: alert.Config{Overrides: []alert.OverrideConfig{{EventType: "report.due", Limits: alert.LimitsConfig{OldestAge: time.Hour}}}},
			set: func(t *testing.T, db *bun.DB) {
				event(t, db, "NEW", "report.due", 10*minute)
				delivery(t, db, "SUCCESS", "WalletConsumer", "order.paid", 1, 10*time.Second)
			},
		},
		"nothing moves": {
			wanted: []string{alert.RuleStalled},
			says:   "1 event is due, and nothing has been delivered for 3 min",
			set: func(t *testing.T, db *bun.DB) {
				event(t, db, "NEW", "order.paid", 3*minute+5*time.Second)
				delivery(t, db, "SUCCESS", "WalletConsumer", "order.paid", 1, 10*minute)
			},
		},
		"nobody consumes it": {
			wanted: []string{alert.RuleUnconsumed},
			set: func(t *testing.T, db *bun.DB) {
				event(t, db, "SCHEDULED", "order.odd", 6*minute, "last_error", "'no consumer is registered for order.odd'", "next_retry_at",
					ago(t, db, -20*time.Second))
				event(t, db, "SCHEDULED", "order.new", minute, "last_error", "'no consumer is registered for order.new'", "next_retry_at",
					ago(t, db, time.Second))
			},
		},
		"a consumer lags": {
			wanted: []string{alert.RuleLag},
			says:   "the oldest of 2 deliveries of order.paid has been waiting for WalletConsumer for 20 min",
			set: func(t *testing.T, db *bun.DB) {
				wallet(t, db)
				delivery(t, db, "FAILED", "WalletConsumer", "order.paid", 4, 20*minute+5*time.Second)
				delivery(t, db, "PENDING", "WalletConsumer", "order.paid", 0, 16*minute)
				delivery(t, db, "PENDING", "WalletConsumer", "order.refunded", 0, 14*minute)
			},
		},
		"producers say nothing of reserved events": {
			wanted: []string{alert.RuleReservation},
			says:   "no producer says what has become of 2 reservations of the type order.paid: the time to live of the first was over 20 min ago",
			set: func(t *testing.T, db *bun.DB) {
				reservation(t, db, "order.paid", 20*minute+5*time.Second, ago(t, db, -minute)) // it was asked, and is asked again
				reservation(t, db, "order.paid", 3*minute, ago(t, db, minute))                 // nobody has asked
				reservation(t, db, "order.paid", -time.Hour, ago(t, db, -time.Hour))           // it is not over
				reservation(t, db, "order.paid", time.Hour, "NULL")                            // it is confirmed
				reservation(t, db, "order.refunded", minute, ago(t, db, -minute))              // not for long
			},
		},
		"reserved events of this type may take long": {
			cfg: alert.Config{Overrides: []alert.OverrideConfig{{EventType: "order.paid", Limits: alert.LimitsConfig{Reservation: time.Hour}}}},
			set: func(t *testing.T, db *bun.DB) { reservation(t, db, "order.paid", 20*minute, ago(t, db, -minute)) },
		},
		"nobody knows the version": {
			wanted: []string{alert.RuleVersion},
			says:   "2 deliveries of order.paid wait for WalletConsumer, and no running instance knows the schema version: the first since 20 min",
			set: func(t *testing.T, db *bun.DB) {
				wallet(t, db)
				for _, since := range []time.Duration{20*minute + 5*time.Second, minute} {
					delivery(t, db, "PENDING", "WalletConsumer", "order.paid", 0, since, "next_retry_at", never(t, db))
				}
				delivery(t, db, "PENDING", "WalletConsumer", "order.paid", 0, 3*minute)
				delivery(t, db, "PENDING", "WalletConsumer", "order.refunded", 0, 4*minute, "next_retry_at", never(t, db))
			},
		},
		"a slow consumer": {
			cfg: alert.Config{Overrides: []alert.OverrideConfig{{Consumer: "WalletConsumer", Limits: alert.LimitsConfig{LagAge: time.Hour}}}},
			set: func(t *testing.T, db *bun.DB) {
				wallet(t, db)
				delivery(t, db, "PENDING", "WalletConsumer", "order.paid", 0, 16*minute)
			},
		},
		"a circuit is open": {
			wanted: []string{alert.RuleCircuit},
			says:   "2 deliveries of order.paid to WalletConsumer have failed for 20 min without an attempt that counts",
			set: func(t *testing.T, db *bun.DB) {
				wallet(t, db)
				delivery(t, db, "FAILED", "WalletConsumer", "order.paid", 0, 20*minute)
				delivery(t, db, "FAILED", "WalletConsumer", "order.paid", 0, minute)
			},
		},
		"most attempts fail": {
			wanted: []string{alert.RuleFailures},
			says:   "67 % of the attempts of WalletConsumer in the last 5 min failed (10 of 15)",
			set: func(t *testing.T, db *bun.DB) {
				wallet(t, db)
				for range 10 {
					attempt(t, db, "WalletConsumer", minute)
				}
				for range 5 {
					delivery(t, db, "SUCCESS", "WalletConsumer", "order.paid", 1, minute)
				}
			},
		},
		"some attempts fail": {set: func(t *testing.T, db *bun.DB) {
			wallet(t, db)
			for range 10 {
				attempt(t, db, "WalletConsumer", minute)
			}
			for range 11 {
				delivery(t, db, "SUCCESS", "WalletConsumer", "order.paid", 1, minute)
			}
		}},
		"most attempts failed, some time ago": {set: func(t *testing.T, db *bun.DB) {
			for range 20 {
				attempt(t, db, "WalletConsumer", 6*minute)
			}
		}},
		"paused for long": {
			wanted: []string{alert.RulePaused},
			says:   "has been paused for 2 h by ana",
			set: func(t *testing.T, db *bun.DB) {
				registered(t, db, "WalletConsumer", 0, "paused_until", ago(t, db, -time.Hour), "paused_by", "'ana'")
				sqlExec(t, db, "INSERT INTO bc_audit_log (actor, action, target, reason, created_at) "+
					"VALUES ('ana', 'pause', 'WalletConsumer', 'x', "+ago(t, db, 2*time.Hour+time.Second)+")")
				delivery(t, db, "PENDING", "WalletConsumer", "order.paid", 0, 2*time.Hour)
			},
		},
		"paused by SQL": {
			wanted: []string{alert.RulePaused},
			says:   "nobody has written down",
			set: func(t *testing.T, db *bun.DB) {
				registered(t, db, "WalletConsumer", 0, "paused_until", ago(t, db, -time.Hour))
			},
		},
		"paused lately, or no more": {set: func(t *testing.T, db *bun.DB) {
			registered(t, db, "WalletConsumer", 0, "paused_until", ago(t, db, -time.Hour), "paused_by", "'ana'")
			registered(t, db, "PointsConsumer", 0, "paused_until", ago(t, db, minute), "paused_by", "'ana'")
			sqlExec(t, db, "INSERT INTO bc_audit_log (actor, action, target, reason, created_at) "+
				"VALUES ('ana', 'pause', 'WalletConsumer', 'x', "+ago(t, db, minute)+")")
		}},
		"a consumer is absent": {
			wanted: []string{alert.RuleUnregistered},
			says:   "1 delivery waits for the consumer WalletConsumer, which no instance has had for 20 min",
			set: func(t *testing.T, db *bun.DB) {
				registered(t, db, "WalletConsumer", 20*minute+5*time.Second)
				delivery(t, db, "PENDING", "WalletConsumer", "order.paid", 0, 20*minute)
			},
		},
		"a consumer is absent for a day": {
			wanted: []string{alert.RuleUnregistered},
			says:   "no instance has had the consumer WalletConsumer for",
			set: func(t *testing.T, db *bun.DB) {
				registered(t, db, "WalletConsumer", 25*60*minute)
			},
		},
		"a consumer is absent for a day, and paused": {
			wanted: []string{alert.RuleUnregistered},
			says:   "no instance has had the consumer WalletConsumer for 25 h",
			set: func(t *testing.T, db *bun.DB) {
				pausedLately(t, db, 25*time.Hour)
				delivery(t, db, "PENDING", "WalletConsumer", "order.paid", 0, 20*minute)
			},
		},
		"a consumer is absent for less, and paused": {set: func(t *testing.T, db *bun.DB) {
			pausedLately(t, db, 23*time.Hour)
			delivery(t, db, "PENDING", "WalletConsumer", "order.paid", 0, 20*minute)
		}},
		"a consumer may be absent for two days": {
			cfg: alert.Config{Limits: alert.LimitsConfig{Unregistered: 48 * time.Hour}},
			set: func(t *testing.T, db *bun.DB) { registered(t, db, "WalletConsumer", 25*time.Hour) },
		},
		"a consumer may be absent for ever": {
			cfg: alert.Config{Limits: alert.LimitsConfig{Unregistered: -1}},
			set: func(t *testing.T, db *bun.DB) { registered(t, db, "WalletConsumer", 25*time.Hour) },
		},
		"a consumer is absent, and nothing waits": {set: func(t *testing.T, db *bun.DB) {
			registered(t, db, "WalletConsumer", 20*minute)
			delivery(t, db, "SUCCESS", "WalletConsumer", "order.paid", 1, minute)
		}},
		"a job does not run": {
			wanted: []string{alert.RuleJobLate},
			says:   "the job lock_timeout_reaper (0 */5 * * * ?) has not finished a run for 14 min",
			set: func(t *testing.T, db *bun.DB) {
				job(t, db, "lock_timeout_reaper", "SUCCESS", 14*minute+5*time.Second)
				job(t, db, "order_asset_consistency", "SUCCESS", 90*minute)
				job(t, db, "some_job", "SUCCESS", 1000*time.Hour)
			},
		},
		"a job of one's own does not run": {
			wanted: []string{alert.RuleJobLate},
			cfg:    alert.Config{Jobs: map[string]string{"some_job": "0 0 * * * ?", "lock_timeout_reaper": ""}},
			set: func(t *testing.T, db *bun.DB) {
				job(t, db, "lock_timeout_reaper", "SUCCESS", 14*minute)
				job(t, db, "some_job", "SUCCESS", 3*time.Hour)
			},
		},
		"a job fails": {wanted: []string{alert.RuleJobFailed}, set: func(t *testing.T, db *bun.DB) {
			job(t, db, "lock_timeout_reaper", "FAILED", minute)
			jobRun(t, db, "lock_timeout_reaper", "connection refused")
		}},
		"too many repairs": {wanted: []string{alert.RuleRepairs}, set: func(t *testing.T, db *bun.DB) {
			job(t, db, "order_asset_consistency", "FAILED", minute)
			jobRun(t, db, "order_asset_consistency", "consistency: order.paid: the limit of repairs per run is reached: find out why")
		}},
		"the clocks are apart": {
			wanted: []string{alert.RuleClock}, says: "and the database's are 59m",
			clock: time.Hour - 10*time.Second, set: func(*testing.T, *bun.DB) {},
		},
		"the clocks are hardly apart": {clock: 2 * time.Second, set: func(*testing.T, *bun.DB) {}},
	}
}

// Each rule speaks when it should, and only then.
func TestEachRuleFiresAndDoesNot(t *testing.T) {
	t.Parallel()
	fired := make(map[string]bool)
	for _, all := range []map[string]scene{scenes(), unattendedScenes()} {
		for _, s := range all {
			for _, r := range s.wanted {
				fired[r] = true
			}
		}
	}
	for _, r := range alert.Rules() {
		require.True(t, fired[r.Code], "no scene of the rule %s", r.Code)
	}
	for _, d := range testdb.Dialects() {
		t.Run(d, func(t *testing.T) {
			t.Parallel()
			play(t, testdb.Open(t, d), scenes())
		})
	}
}

// play looks at scenes, one after the other, on emptied tables.
func play(t *testing.T, db *bun.DB, scenes map[string]scene) {
	t.Helper()
	for name, s := range scenes {
		for _, table := range []string{
			"bc_outbox_event", "bc_event_consume_log", "bc_delivery_attempt", "bc_consumer", "bc_consumer_type", "bc_audit_log",
			"bc_bulk_operation", "bc_job_lease", "bc_job_run", "bc_alert", "bc_alert_message", "bc_reservation",
		} {
			sqlExec(t, db, "DELETE FROM "+table)
		}
		s.set(t, db)
		var got inbox
		s.cfg.Routes = to(&got)
		a := newAlerter(t, db, s.cfg)
		alert.Shift(a, s.clock)
		look(t, a)
		rules := []string{}
		for _, n := range got.got() {
			require.Equal(t, alert.Firing, n.Kind)
			require.NotEmpty(t, n.Remedy, n.Rule)
			require.NotEmpty(t, n.Says, n.Rule)
			require.NotEmpty(t, n.Subject, n.Rule)
			require.Equal(t, "docs/operations.md#"+n.Rule, n.Runbook)
			require.False(t, n.Since.IsZero())
			rules = append(rules, n.Rule)
		}
		require.ElementsMatch(t, s.wanted, rules, "%s: %v", name, got.got())
		if s.says != "" {
			require.Contains(t, got.got()[0].Says, s.says, name)
		}
	}
}
