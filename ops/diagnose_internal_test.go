package ops

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/store/view"
	"github.com/bluecone-go/bluecone/outbox"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) time.Time { return noon.Add(-d) }

// a story of one event to the consumer Wallet, which is fine unless change says otherwise.
func storyOf(change func(t *tracer, e *Event, d *Delivery)) *tracer {
	t := &tracer{
		cfg: Config{}.withDefaults(),
		known: known{
			at: noon, consumers: []registration{{
				name: "Wallet", types: []string{"order.locked", "order.paid"}, seenAt: ago(time.Second), age: time.Second,
			}},
			replays: map[string]registration{}, broken: map[string][]string{},
		},
	}
	e := Event{
		OutboxID: 2, EventID: "e2", EventType: "order.paid", AggregateType: "ORDER", AggregateID: "7", Status: outbox.StatusFailed,
		CreatedAt: ago(time.Minute), UpdatedAt: ago(time.Minute),
	}
	d := Delivery{
		Consumer: "Wallet", Status: consumelog.Pending, CreatedAt: ago(time.Minute), UpdatedAt: ago(time.Minute),
		NextRetryAt: ago(time.Second), Registered: true,
	}
	change(t, &e, &d)
	if d.Consumer != "" {
		e.Deliveries = append(e.Deliveries, d)
	}
	t.story.Events = append(t.story.Events, e)
	return t
}

func earlier(status consumelog.Status, consumedAt time.Time) Event {
	return Event{
		OutboxID: 1, EventID: "e1", EventType: "order.locked", AggregateType: "ORDER", AggregateID: "7", Status: outbox.StatusFailed,
		CreatedAt: ago(2 * time.Minute), UpdatedAt: ago(time.Minute),
		Deliveries: []Delivery{
			{
				Consumer: "Wallet", Status: status, ConsumedAt: consumedAt, NextRetryAt: noon.Add(time.Minute), UpdatedAt: ago(time.Minute),
				Error: "no",
			},
		},
	}
}

// reserved is a story with a reservation.
func reserved(r Reservation) func(*tracer, *Event, *Delivery) {
	r.EventID, r.EventType, r.Producer, r.ExpiresAt, r.UpdatedAt = "e3", "order.paid", "shop", noon.Add(time.Hour), noon
	return func(t *tracer, _ *Event, _ *Delivery) { t.story.Reservations = []Reservation{r} }
}

func TestEveryRuleOfTheDiagnosis(t *testing.T) {
	t.Parallel()
	sent := func(_ *tracer, e *Event, d *Delivery) {
		e.Status, d.Status, d.ConsumedAt = outbox.StatusSent, consumelog.Success, ago(30*time.Second)
	}
	section := func(change func(f *Facts)) func(*tracer, *Event, *Delivery) {
		return func(t *tracer, e *Event, d *Delivery) {
			sent(t, e, d)
			f := Facts{Title: "Wallet"}
			change(&f)
			t.story.Sections = []Facts{f}
		}
	}
	for name, c := range map[string]struct {
		rule, says, remedy string
		fires, quiet       func(t *tracer, e *Event, d *Delivery)
	}{
		"missing event": {
			RuleMissingEvent, "The event that the check order.paid demands of 7 was never saved, so no consumer knows of it.",
			"bluecone jobs run order_asset_consistency",
			func(t *tracer, e *Event, d *Delivery) {
				sent(t, e, d)
				t.lacks = map[string][]string{"order.paid": {"7"}}
			}, sent,
		},
		"dead": {
			RuleDead, "Wallet gave up order.paid of ORDER 7 at 2026-11-21 11:59:00 UTC after 10 attempts: balance is too low.",
			"bluecone events retry e2 --consumer Wallet",
			func(_ *tracer, e *Event, d *Delivery) {
				e.Status, d.Status, d.Attempts, d.Error = outbox.StatusDead, consumelog.Dead, 10, "balance is too low.\nstack"
			},
			func(_ *tracer, _ *Event, d *Delivery) { d.Status = consumelog.Failed },
		},
		"failing": {
			RuleFailing, "Wallet failed with order.paid of ORDER 7, 1 attempt so far, and tries again at 2026-11-21 12:01:00 UTC: away.",
			"bluecone events retry e2",
			func(_ *tracer, _ *Event, d *Delivery) {
				d.Status, d.Attempts, d.Error, d.NextRetryAt = consumelog.Failed, 1, "away", noon.Add(time.Minute)
			}, sent,
		},
		"behind": {
			RuleBehind, "order.paid of ORDER 7 waits for Wallet behind the earlier order.locked (event e1), which Wallet has not done.",
			"bluecone events show e1",
			func(t *tracer, _ *Event, _ *Delivery) {
				t.story.Events = []Event{earlier(consumelog.Dead, time.Time{})}
			},
			func(t *tracer, _ *Event, _ *Delivery) {
				t.story.Events = []Event{earlier(consumelog.Success, ago(time.Minute))}
			},
		},
		"new and stuck": {
			RuleStuck, "order.paid of ORDER 7 has been NEW since 2026-11-21 11:00:00 UTC: no publisher claims it.", "bluecone doctor",
			func(_ *tracer, e *Event, d *Delivery) {
				e.Status, e.CreatedAt, d.Consumer = outbox.StatusNew, ago(time.Hour), ""
			},
			func(_ *tracer, e *Event, d *Delivery) { e.Status, d.Consumer = outbox.StatusNew, "" },
		},
		"claimed and stuck": {
			RuleStuck, "order.paid of ORDER 7 was claimed by host-1, whose lease ended 2026-11-21 11:00:00 UTC, and nobody has claimed it " +
				"again.", "bluecone status",
			func(_ *tracer, e *Event, d *Delivery) {
				e.Status, e.LockedBy, e.NextRetryAt, d.Consumer = outbox.StatusDispatching, "host-1", ago(time.Hour), ""
			},
			func(_ *tracer, e *Event, d *Delivery) {
				e.Status, e.LockedBy, e.NextRetryAt, d.Consumer = outbox.StatusDispatching, "host-1", noon.Add(time.Minute), ""
			},
		},
		"due and stuck": {
			RuleStuck, "order.paid of ORDER 7 has been due since 2026-11-21 11:00:00 UTC, and no publisher claims it.", "Instances",
			func(_ *tracer, e *Event, d *Delivery) {
				e.Status, e.NextRetryAt, d.Consumer = outbox.StatusScheduled, ago(time.Hour), ""
			},
			func(_ *tracer, e *Event, d *Delivery) {
				e.Status, e.NextRetryAt, d.Consumer = outbox.StatusScheduled, noon.Add(time.Hour), ""
			},
		},
		"failed without a reason": {
			RuleStuck, "order.paid of ORDER 7 has been FAILED since 2026-11-21 11:00:00 UTC although none of its deliveries waits.",
			"within a minute",
			func(_ *tracer, e *Event, d *Delivery) {
				e.UpdatedAt, d.Status, d.ConsumedAt = ago(time.Hour), consumelog.Success, ago(time.Hour)
			},
			func(_ *tracer, e *Event, _ *Delivery) { e.UpdatedAt = ago(time.Hour) },
		},
		"running and stuck": {
			RuleStuck, "host-1 has order.paid of ORDER 7 in flight for Wallet, and its lease ended 2026-11-21 11:00:00 UTC.",
			"bluecone consumers list",
			func(_ *tracer, _ *Event, d *Delivery) {
				d.Status, d.LockedBy, d.NextRetryAt = consumelog.Processing, "host-1", ago(time.Hour)
			},
			func(_ *tracer, _ *Event, d *Delivery) {
				d.Status, d.LockedBy, d.NextRetryAt = consumelog.Processing, "host-1", noon.Add(time.Second)
			},
		},
		"waiting for long": {
			RuleStuck, "order.paid of ORDER 7 has waited for Wallet since 2026-11-21 11:00:00 UTC, and nothing is in its way: the consumer is " +
				"behind.", "Concurrency",
			func(_ *tracer, _ *Event, d *Delivery) { d.CreatedAt, d.NextRetryAt = ago(time.Hour), ago(time.Hour) },
			func(*tracer, *Event, *Delivery) {},
		},
		"crashing": {
			RuleCrashing, "The lease of order.paid of ORDER 7 ran out 3 times: a consumer of it may be ending or freezing its process.", "crashes",
			func(_ *tracer, e *Event, _ *Delivery) { e.Expired = 3 },
			func(_ *tracer, e *Event, _ *Delivery) { e.Expired = 2 },
		},
		"delayed": {
			RuleDelayed, "order.paid of ORDER 7 is to be delivered at 2026-11-21 13:00:00 UTC.", "",
			func(_ *tracer, e *Event, d *Delivery) {
				e.Status, e.NextRetryAt, d.Consumer = outbox.StatusScheduled, noon.Add(time.Hour), ""
			}, sent,
		},
		"out of order": {
			RuleOutOfOrder, "Wallet did order.locked of ORDER 7 at 2026-11-21 12:00:00 UTC, after the later order.paid (event e2), which it had " +
				"done at 2026-11-21 11:59:30 UTC.", "Unordered",
			func(t *tracer, e *Event, d *Delivery) {
				sent(t, e, d)
				t.story.Events = []Event{earlier(consumelog.Success, noon)}
			},
			func(t *tracer, e *Event, d *Delivery) {
				sent(t, e, d)
				t.story.Events = []Event{earlier(consumelog.Success, ago(30*time.Second))} // of one batch
			},
		},
		"unconsumed": {
			RuleUnconsumed, "No consumer is registered for order.gone: the event of ORDER 7 has been parked since 2026-11-21 11:59:00 UTC.",
			"bluecone events discard e2",
			func(_ *tracer, e *Event, d *Delivery) {
				e.EventType, e.Status, e.LastError, e.NextRetryAt, d.Consumer = "order.gone", outbox.StatusScheduled, "no consumer is registered",
					noon.Add(time.Second), ""
			},
			func(_ *tracer, e *Event, d *Delivery) {
				e.Status, e.LastError, e.NextRetryAt, d.Consumer = outbox.StatusScheduled, "no consumer is registered", noon.Add(time.Second), ""
			},
		},
		"of a version that nobody knows": {
			RuleVersion, "order.paid of ORDER 7 has waited for Wallet since 2026-11-21 11:00:00 UTC: no running instance knows schema version 4 " +
				"of the event.", "bluecone events skip",
			func(_ *tracer, e *Event, d *Delivery) {
				e.SchemaVersion, d.Left, d.UpdatedAt, d.NextRetryAt = 4, true, ago(time.Hour), time.Time{}
			},
			func(_ *tracer, e *Event, d *Delivery) {
				e.SchemaVersion, d.Left, d.UpdatedAt, d.NextRetryAt = 4, true, ago(time.Second), time.Time{}
			},
		},
		"unregistered": {
			RuleUnregistered, "order.paid of ORDER 7 waits for Purse, which no instance runs (no instance has ever announced it).",
			"ConsumerConfig.Key",
			func(_ *tracer, _ *Event, d *Delivery) { d.Consumer = "Purse" },
			func(*tracer, *Event, *Delivery) {},
		},
		"not announced any more": {
			RuleUnregistered, "order.paid of ORDER 7 waits for Wallet, which no instance runs (last announced 2026-11-21 11:00:00 UTC).",
			"Start an instance",
			func(t *tracer, _ *Event, _ *Delivery) {
				t.known.consumers[0].age, t.known.consumers[0].seenAt = time.Hour, ago(time.Hour)
			},
			func(t *tracer, _ *Event, _ *Delivery) { t.known.consumers[0].age = time.Minute },
		},
		"paused": {
			RulePaused, "order.paid of ORDER 7 waits because anna paused Wallet until 2026-11-21 13:00:00 UTC: the bank migrates.",
			"bluecone consumers resume Wallet",
			func(t *tracer, _ *Event, _ *Delivery) {
				r := &t.known.consumers[0]
				r.paused, r.pausedBy, r.pauseReason, r.pausedUntil = true, "anna", "the bank migrates", noon.Add(time.Hour)
			},
			func(*tracer, *Event, *Delivery) {},
		},
		"replay paused": {
			RulePaused, "order.paid of ORDER 7 waits because anna paused Wallet@replay until it is resumed: too fast.",
			"bluecone consumers resume Wallet@replay",
			func(t *tracer, _ *Event, d *Delivery) {
				d.Consumer, d.Replay = "Wallet@replay", true
				t.known.replays["Wallet"] = registration{
					name: "Wallet@replay", paused: true, pausedBy: "anna", pauseReason: "too fast",
					pausedUntil: noon.AddDate(100, 0, 0),
				}
			},
			func(t *tracer, _ *Event, _ *Delivery) {
				t.known.replays["Wallet"] = registration{name: "Wallet@replay", paused: true}
			},
		},
		"circuit": {
			RuleCircuit, "order.paid of ORDER 7 waits because what Wallet calls is away, as host-1 has found: connection refused.", "Bring back",
			func(t *tracer, _ *Event, d *Delivery) {
				d.Error, t.known.broken["Wallet"] = "connection refused", []string{"host-1"}
			},
			func(t *tracer, _ *Event, _ *Delivery) { t.known.broken["Other"] = []string{"host-1"} },
		},
		"lock": {
			RuleLock, "Wallet: 500 cents has been held since 2026-11-21 11:00:00 UTC, 60 min, longer than 30 min, and no event is under way " +
				"that would settle it.", "lock_timeout_reaper",
			section(func(f *Facts) {
				f.Locks = []Lock{{Name: "500 cents", Since: ago(time.Hour), TTL: 30 * time.Minute}}
			}),
			section(func(f *Facts) {
				f.Locks = []Lock{{Name: "500 cents", Since: ago(time.Minute), TTL: 30 * time.Minute}}
			}),
		},
		"lock beside another consumer's failure": {
			RuleLock, "Wallet: 500 cents has been held since 2026-11-21 11:00:00 UTC, 60 min, longer than 30 min, and no event is under way " +
				"that would settle it.", "lock_timeout_reaper",
			func(t *tracer, _ *Event, _ *Delivery) {
				t.story.Sections = []Facts{
					{Title: "Wallet", Locks: []Lock{{Name: "500 cents", Since: ago(time.Hour), TTL: 30 * time.Minute, Consumer: "Coupons"}}},
				}
			},
			sent,
		},
		"lock with an event": {
			RuleLock, "Wallet: 500 cents has been held since 2026-11-21 11:00:00 UTC, 60 min, longer than 30 min: the reaper leaves it alone " +
				"because order.paid of ORDER 7 is FAILED.", "bluecone events show e2",
			func(t *tracer, _ *Event, _ *Delivery) {
				t.story.Sections = []Facts{{Title: "Wallet", Locks: []Lock{{Name: "500 cents", Since: ago(time.Hour), TTL: 30 * time.Minute}}}}
			},
			sent,
		},
		"replay that nobody runs": {
			RuleReplay, "A replay of order.paid of ORDER 7 waits for Wallet, of which no instance runs replays (any more).",
			"bluecone events skip e2 --consumer Wallet@replay",
			func(t *tracer, _ *Event, d *Delivery) {
				d.Consumer, d.Replay = "Wallet@replay", true
				t.known.replays["Wallet"] = registration{name: "Wallet@replay", age: time.Hour}
			},
			func(t *tracer, _ *Event, d *Delivery) {
				d.Consumer, d.Replay = "Wallet@replay", true
				t.known.replays["Wallet"] = registration{name: "Wallet@replay", age: time.Minute}
			},
		},
		"type that is gone": {
			RuleTypeGone, "order.paid of ORDER 7 waits for Wallet, and no running release of it takes the type.",
			"bluecone consumers retire Wallet --type order.paid",
			func(t *tracer, _ *Event, _ *Delivery) { t.known.consumers[0].gone = []string{"order.paid"} },
			func(t *tracer, _ *Event, _ *Delivery) { t.known.consumers[0].types = nil }, // its row is malformed
		},
		"past that nobody gives": {
			RulePast, "Wallet has not had order.paid of ORDER 7: an open backfill has not come to it, and has not moved since 2026-11-21 11:00:00 " +
				"UTC. Later events of the aggregate wait for it.", "ops.Run",
			func(t *tracer, e *Event, d *Delivery) {
				e.Status, d.Consumer = outbox.StatusSent, ""
				t.fills = []view.Backfill{{Consumer: "Wallet", State: "RUNNING", Request: "{}", Reached: 1, UpdatedAt: ago(time.Hour)}}
			},
			func(t *tracer, e *Event, d *Delivery) {
				sent(t, e, d)
				t.fills = []view.Backfill{{Consumer: "Wallet", State: "RUNNING", Request: "{}", Reached: 1, UpdatedAt: ago(time.Hour)}}
			},
		},
		"lock while another consumer is at work": {
			RuleLock, "Wallet: 500 cents has been held since 2026-11-21 11:00:00 UTC, 60 min, longer than 30 min, and no event is under way " +
				"that would settle it.", "lock_timeout_reaper",
			func(t *tracer, e *Event, d *Delivery) {
				e.Status, d.Status = outbox.StatusDispatching, consumelog.Success
				t.story.Sections = []Facts{
					{Title: "Wallet", Locks: []Lock{{Name: "500 cents", Since: ago(time.Hour), TTL: 30 * time.Minute, Consumer: "Wallet"}}},
				}
			},
			sent,
		},
		"reservation": {
			RuleReservation, "shop has reserved order.paid until 2026-11-21 13:00:00 UTC, and neither confirmed nor canceled it yet: no consumer " +
				"sees the event.", "",
			reserved(Reservation{State: Prepared}), reserved(Reservation{State: Confirmed}),
		},
		"reservation without an answer": {
			RuleReservation, "shop reserved order.paid until 2026-11-21 13:00:00 UTC, and does not say what became of it; asked 3 times, the " +
				"last time: no answer.", "check URL",
			reserved(Reservation{State: Prepared, Over: true, Checks: 3, LastError: "no answer"}), reserved(Reservation{State: Confirmed}),
		},
		"reservation that nobody asks about": {
			RuleReservation, "shop reserved order.paid until 2026-11-21 13:00:00 UTC, and has not said what became of it; nobody has been asked " +
				"yet.", "check URL",
			reserved(Reservation{State: Prepared, Over: true}), reserved(Reservation{State: Confirmed}),
		},
		"canceled reservation": {
			RuleReservation, "shop reserved order.paid, and the reservation was canceled at 2026-11-21 12:00:00 UTC: nobody gets the event.", "",
			reserved(Reservation{State: Canceled}), reserved(Reservation{State: Confirmed}),
		},
		"amount": {
			RuleAmount, "Wallet: cents should be 500 and is 300: the order says 500, the ledger 300.", "by hand",
			section(func(f *Facts) {
				f.Amounts = []Amount{{Name: "cents", Want: 500, Have: 300, Says: "the order says 500, the ledger 300"}}
			}),
			section(func(f *Facts) { f.Amounts = []Amount{{Name: "cents", Want: 500, Have: 500}} }),
		},
		"missing of a module": {
			RuleMissing, "Wallet: the order is paid and nothing was committed.", "Replayable",
			section(func(f *Facts) { f.Missing = []string{"the order is paid and nothing was committed"} }),
			section(func(*Facts) {}),
		},
		"healthy": {
			RuleHealthy, "All is well: each of the 1 events has reached its consumers; the last was order.paid, saved 2026-11-21 11:59:00 UTC.", "",
			sent, func(_ *tracer, _ *Event, d *Delivery) { d.Status = consumelog.Failed },
		},
	} {
		found := func(change func(t *tracer, e *Event, d *Delivery)) (out []Finding) {
			s := storyOf(change)
			s.diagnose()
			for _, f := range s.story.Findings {
				if f.Rule == c.rule && (f.EventID != "e1" || c.rule == RuleOutOfOrder) {
					out = append(out, f)
				}
			}
			return out
		}
		f := found(c.fires)
		require.Len(t, f, 1, name)
		require.Equal(t, c.says, f[0].Says, name)
		require.Contains(t, f[0].Remedy, c.remedy, name)
		require.NotContains(t, f[0].Says+f[0].Remedy, "{", name)
		require.Empty(t, found(c.quiet), "%s must be quiet", name)
	}
}

func TestWorstFindingsComeFirst(t *testing.T) {
	t.Parallel()
	s := storyOf(func(t *tracer, _ *Event, d *Delivery) {
		d.Status = consumelog.Failed
		t.story.Events = []Event{earlier(consumelog.Dead, time.Time{})}
	})
	s.diagnose()
	require.Equal(t, []string{RuleDead, RuleBehind}, []string{s.story.Findings[0].Rule, s.story.Findings[1].Rule})
}
