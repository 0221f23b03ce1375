package outbox_test

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// daysAgo is a time of the database that lies three days back.
func (f *fixture) daysAgo() string {
	return map[string]string{
		"mysql": "UTC_TIMESTAMP(6) - INTERVAL 3 DAY", "pg": "now() - interval '3 days'",
		"sqlite": "(strftime('%Y-%m-%d %H:%M:%f', 'now', '-3 days') || '000')",
	}[f.db.Dialect().Name().String()]
}

// However long the instances of a consumer are away (or the database's clock believes so), events wait for it,
// until somebody retires it.
func TestRegistrationDoesNotExpire(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		here, away := newFixture(t, db), newFixture(t, db)
		here.effects()
		here.counting("Wallet", bus.ConsumerConfig{})
		away.counting("Points", bus.ConsumerConfig{})
		away.counterOfNewRelease(&failNever)
		away.once()
		here.exec("UPDATE bc_consumer SET seen_at = " + here.daysAgo())
		here.exec("UPDATE bc_consumer_type SET seen_at = " + here.daysAgo())
		here.save(orderPaid{OrderID: "1"}, keyless("2"))
		here.once()
		require.Equal(t, map[outbox.Status]int{outbox.StatusFailed: 2}, here.statuses())
		require.Equal(t, map[consumelog.Status]int{consumelog.Success: 1, consumelog.Pending: 3}, here.deliveries())
		away.once()
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 2}, here.statuses())
		require.Equal(t, 4, here.count("SELECT COUNT(*) FROM effect"))
	})
}

// An event type that the consumer's code takes no more ends by somebody's word too, and so do its replays.
func TestOperatorRetiresATypeOrAConsumer(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		here, away := newFixture(t, db), newFixture(t, db)
		here.effects()
		here.counting("Counter", bus.ConsumerConfig{})
		away.counterOfNewRelease(&failNever) // takes order.renamed as well
		away.counting("Points", bus.ConsumerConfig{Replayable: true})
		away.once()
		here.once()
		op := outbox.Operation{Actor: "ops", Reason: "the code is gone"}
		require.ErrorIs(t, here.ob.Retire(t.Context(), op, "Counter", "order.unknown"), outbox.ErrNotFound)
		require.NoError(t, here.ob.Retire(t.Context(), op, "Counter", "order.renamed"))
		require.NoError(t, here.ob.Retire(t.Context(), op, "Points"))
		require.Equal(t, 1, here.count("SELECT COUNT(*) FROM bc_consumer"), "neither Points nor its replays")
		require.Equal(t, 1, here.count("SELECT COUNT(*) FROM bc_consumer_type"))
		require.Equal(t, 1, here.count("SELECT COUNT(*) FROM bc_audit_log WHERE action = 'retire' AND target = 'Counter' "+
			"AND details = 'order.renamed'"))
		here.save(orderPaid{OrderID: "1"})
		here.once()
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 1}, here.statuses())
	})
}

// A publisher that runs keeps what it has read of the registry, and reads again what has changed: a consumer that another
// instance has registered, a pause, a consumer that was retired.
func TestRegistryIsReadAgainWhenItHasChanged(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		here, away := newFixture(t, db), newFixture(t, db)
		here.effects()
		here.counting("Wallet", bus.ConsumerConfig{})
		away.counting("Points", bus.ConsumerConfig{})
		here.run(outbox.PublisherConfig{Poll: 50 * time.Millisecond})
		saved := 0
		save := func(want map[outbox.Status]int, what string) {
			saved++
			here.save(orderPaid{OrderID: fmt.Sprint(saved)})
			here.eventually(func() bool { return maps.Equal(want, here.statuses()) }, what)
		}
		save(map[outbox.Status]int{outbox.StatusSent: 1}, "nobody else takes it")
		away.once()
		save(map[outbox.Status]int{outbox.StatusSent: 1, outbox.StatusFailed: 1}, "it waits for Points")
		op := outbox.Operation{Actor: "ops", Reason: "test"}
		require.NoError(t, here.ob.Pause(t.Context(), op, "Wallet", 0))
		here.eventually(func() bool { // nobody promises how soon a pause is heard of
			saved++
			here.save(orderPaid{OrderID: fmt.Sprint(saved)})
			return here.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE consumer_name = 'Wallet' AND status = 'PENDING'") > 0
		}, "it waits for Wallet")
		require.NoError(t, here.ob.Resume(t.Context(), op, "Wallet"))
		here.eventually(func() bool { return here.count("SELECT COUNT(*) FROM effect WHERE consumer = 'Wallet'") == saved }, "Wallet goes on")
		require.NoError(t, here.ob.Retire(t.Context(), op, "Points"))
		here.eventually(func() bool { // nor that
			saved++
			here.save(orderPaid{OrderID: fmt.Sprint(saved)})
			return here.statuses()[outbox.StatusSent] > 1
		}, "nobody else takes it any more")
	})
}

// A row that is malformed in any table that the engine reads harms nobody else.
func TestMalformedRowsHarmNobodyElse(t *testing.T) {
	t.Parallel()
	const log = "INSERT INTO bc_event_consume_log (consumer_name, event_id, event_type, status, attempts, outbox_id, aggregate_type, " +
		"aggregate_id, next_retry_at) VALUES "
	tooLong := `["order.paid"` + strings.Repeat(" ", 64<<10) + "]"
	for what, insert := range map[string]string{
		"a consumer whose types are too long to read": "INSERT INTO bc_consumer (name, event_types, aliases) " +
			"VALUES ('Malformed', '" + tooLong + "', '')",
		"a consumer whose types are no JSON": "INSERT INTO bc_consumer (name, event_types, aliases) VALUES ('Malformed', '[\"order.pa', 'x')",
		"a consumer whose types are no list": "INSERT INTO bc_consumer (name, event_types, aliases) VALUES ('Malformed', '{\"a\": 1}', '')",
		"a consumer without a name":          "INSERT INTO bc_consumer (name, event_types, aliases) VALUES ('', '[\"order.paid\"]', '[]')",
		"a type of nobody":                   "INSERT INTO bc_consumer_type (consumer_name, event_type) VALUES ('Nobody', 'order.paid')",
		"a type without a name":              "INSERT INTO bc_consumer_type (consumer_name, event_type) VALUES ('Wallet', '')",
		"a delivery of an unknown status": log + "('Wallet', 'x', 'order.paid', 'MALFORMED', 0, 1, 'ORDER', '9', '2020-01-01 " +
			"00:00:00.000000')",
		"a delivery without an aggregate": log + "('Wallet', 'x', 'order.paid', 'PENDING', 0, NULL, NULL, NULL, '2020-01-01 " +
			"00:00:00.000000')",
		"a delivery with attempts below nothing": log + "('Wallet', 'x', 'order.paid', 'FAILED', -7, 999999, 'ORDER', '9', '2020-01-01 " +
			"00:00:00.000000')",
		"a delivery that nobody leased": log + "('Wallet', 'x', 'order.paid', 'PROCESSING', 2000000000, 999999, 'ORDER', '9', " +
			"'2020-01-01 00:00:00.000000')",
		"a job's lease of no status": "INSERT INTO bc_job_lease (job_code, locked_by, lock_version, last_status) " +
			"VALUES ('malformed', '', -1, '?')",
		"an instance without a host": "INSERT INTO bc_instance (name, host, version, in_flight, circuits) VALUES ('', '', '', -5, ',,;')",
		"an event of an unknown status": "INSERT INTO bc_outbox_event (aggregate_type, aggregate_id, event_type, event_id, " +
			"event_payload, status) VALUES ('ORDER', '9', 'order.paid', 'x', '{}', 'MALFORMED')",
		"an event that has expired too often": "INSERT INTO bc_outbox_event (aggregate_type, aggregate_id, event_type, event_id, " +
			"event_payload, status, retry_count, next_retry_at) VALUES ('ORDER', '9', 'order.paid', 'x', '{}', 'DISPATCHING', -3, '2020-01-01 " +
			"00:00:00.000000')",
		"an event of a version below the first": "INSERT INTO bc_outbox_event (aggregate_type, aggregate_id, event_type, event_id, " +
			"event_payload, schema_version) VALUES ('ORDER', '9', 'order.paid', 'x', '{}', -3)",
		"an event whose attempts are below zero": "INSERT INTO bc_outbox_event (aggregate_type, aggregate_id, event_type, event_id, " +
			"event_payload, max_retry_count) VALUES ('ORDER', '9', 'order.paid', 'x', '{}', -3)",
		"a delivery that has run before all time": "INSERT INTO bc_event_consume_log (consumer_name, event_id, event_type, status, attempts, " +
			"outbox_id, aggregate_type, aggregate_id, next_retry_at, first_run_at) VALUES ('Wallet', 'x', 'order.paid', 'FAILED', 1, 999999, " +
			"'ORDER', '9', '2020-01-01 00:00:00.000000', '1001-01-01 00:00:00.000000')",
		"a migration that nobody knows": "INSERT INTO bc_schema_version (version, name, checksum, applied_at) VALUES " +
			"(-1, '', '', '2020-01-01 00:00:00.000000'), (99, '?', '?', '2020-01-01 00:00:00.000000')",
		"an alert of no rule": "INSERT INTO bc_alert (fingerprint, rule, subject, level, state, says, remedy, " +
			"since_at, first_seen_at, last_seen_at) VALUES ('', '', '', '', '?', '', '', '2020-01-01 00:00:00.000000', " +
			"'2020-01-01 00:00:00.000000', '2020-01-01 00:00:00.000000')",
		"a bulk operation without an id": "INSERT INTO bc_bulk_operation (operation_id, action, request, actor, reason) " +
			"VALUES ('', '', '{}', '', '')",
		"a key of no event": "INSERT INTO bc_event_key (event_id) VALUES ('')",
		"a run of no number": "INSERT INTO bc_delivery_attempt (consumer_name, event_id, attempt, outcome, error_message, instance, " +
			"duration_us) VALUES ('Wallet', '', -1, '?', NULL, '', -1)",
		"a consumer that is paused by a bad time": "INSERT INTO bc_consumer (name, event_types, aliases, paused_until) " +
			"VALUES ('Malformed', '[]', '', '2020-01-01 00:00:00.000000')",
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			testdb.Each(t, func(t *testing.T, db *bun.DB) {
				f := newFixture(t, db)
				f.registered("Wallet", "Points")
				if len(insert) > 64<<10 && testdb.Dialect(testdb.Server(t, db)) == "mysql" {
					f.exec("ALTER TABLE bc_consumer MODIFY event_types MEDIUMTEXT NOT NULL") // as it is, it holds no more
				}
				f.exec(insert)
				for i := range 3 {
					f.save(orderPaid{OrderID: fmt.Sprint(i)})
					_, err := f.publisher(outbox.PublisherConfig{}).RunOnce(context.Background())
					require.NoError(t, err)
				}
				require.Equal(t, 6, f.count("SELECT COUNT(*) FROM effect WHERE aggregate IN ('0', '1', '2')"))
				require.Equal(t, 3, f.count("SELECT COUNT(*) FROM bc_outbox_event WHERE status = 'SENT' AND aggregate_id IN ('0', '1', '2')"))
			})
		})
	}
}

var failNever atomic.Bool // never set
