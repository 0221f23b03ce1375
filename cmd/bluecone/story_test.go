package main

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consistency"
	"github.com/bluecone-go/bluecone/ops"
)

// as reads the JSON that a command prints.
func as[T any](t *testing.T, text string) T {
	t.Helper()
	var v T
	require.NoError(t, json.Unmarshal([]byte(text), &v), text)
	return v
}

// A night of an operator: the points service was away, and events died. What is wrong is seen and
// understood, fixed, and nothing is left.
func TestStoryOfANight(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, d *deployment) {
		for n := range 5 {
			d.save(paid{OrderID: fmt.Sprint(n), Cents: 500})
		}
		d.work(bus.Permanent(errors.New("points service: connection refused")))

		r := d.bluecone("status", "--exit-code")
		require.Equal(t, 1, r.code)
		require.Contains(t, r.out, "DEAD 5")
		require.Contains(t, r.errors, "not healthy")
		require.Len(t, as[ops.Overview](t, d.ok("status", "-o", "json")).Consumers, 2)

		groups := as[[]ops.DeadGroup](t, d.ok("dead", "list", "-o", "json"))
		require.Len(t, groups, 1)
		require.Equal(t, "Points", groups[0].Consumer)
		require.EqualValues(t, 5, groups[0].Dead)
		require.Contains(t, d.ok("dead", "list"), "points service: connection refused")

		story := d.ok("trace", "3")
		require.Contains(t, story, "order.paid")
		require.Regexp(t, `(?m)^EVENT ID .*Points +Wallet$`,
			strings.ReplaceAll(strings.ReplaceAll(story, " POINTS", "Points"), " WALLET", "Wallet"))
		require.Contains(t, story, "What happened")
		require.Len(t, as[ops.Story](t, d.ok("trace", "3", "-o", "json")).Events, 1)

		require.Contains(t, d.ok("dead", "retry", "--group", groups[0].Fingerprint, "--dry-run"), "dry run, nothing is changed: retry 5 events")
		bulk := as[ops.Bulk](t, d.ok("dead", "retry", "--group", groups[0].Fingerprint, "--reason", "points is back", "--actor", "grace", "-o",
			"json"))
		require.Equal(t, ops.BulkDone, bulk.State)
		require.EqualValues(t, 5, bulk.Done)
		require.Contains(t, d.ok("bulk", "list"), bulk.ID)
		require.Contains(t, d.ok("bulk", "show", bulk.ID, "--wait"), "DONE")
		d.work(nil)

		require.Contains(t, d.ok("status", "--exit-code"), "DEAD 0")
		require.Contains(t, d.bluecone("dead", "list").errors, "No delivery is DEAD or FAILED.")
		require.Contains(t, d.ok("check", "run", "--quiet"), "Every invariant holds")
		audit := as[ops.Page[ops.AuditRow]](t, d.ok("audit", "list", "--target", bulk.ID, "-o", "json"))
		require.NotEmpty(t, audit.Rows)
		require.Equal(t, "grace", audit.Rows[0].Actor)
		require.Equal(t, "points is back", audit.Rows[0].Reason)
	})
}

// A single event is retried, skipped and discarded, and each is kept in the audit log under the name
// of the user.
func TestSingleEvents(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, d *deployment) {
		d.save(paid{OrderID: "1"}, paid{OrderID: "2"}, paid{OrderID: "3"})
		d.work(bus.Permanent(errors.New("no")))
		page := as[ops.Page[ops.Event]](t, d.ok("events", "list", "--status", "dead", "-o", "json"))
		require.Len(t, page.Rows, 3)
		id := func(i int) string { return page.Rows[i].EventID }

		require.Contains(t, d.ok("events", "retry", id(0), "--reason", "r"), "Points is due at once")
		require.Contains(t, d.ok("events", "skip", id(1), "--consumer", "Points", "--reason", "r"), "Points is skipped")
		require.Contains(t, d.ok("events", "discard", id(2), "--reason", "r"), "Points is given up")
		r := d.bluecone("events", "skip", id(1), "--consumer", "Points", "--reason", "r")
		require.Equal(t, 3, r.code)
		require.Contains(t, r.errors, "nothing to skip: the event "+id(1)+" is SENT")
		r = d.bluecone("events", "retry", id(1), "--consumer", "Point", "--reason", "r")
		require.Equal(t, 3, r.code)
		require.Contains(t, r.errors, "did you mean Points?")

		shown := d.ok("events", "show", id(0))
		require.Contains(t, shown, "order.paid")
		require.NotContains(t, shown, "cents")
		for _, action := range []string{"retry", "skip", "discard"} {
			require.Contains(t, d.ok("audit", "list"), action)
		}
		me, err := user.Current()
		require.NoError(t, err)
		for _, row := range as[ops.Page[ops.AuditRow]](t, d.ok("audit", "list", "-o", "json")).Rows {
			require.Equal(t, me.Username, row.Actor)
		}
	})
}

// The payload is shown on demand, and that is kept.
func TestPayloadIsShownOnDemandAndAudited(t *testing.T) {
	t.Parallel()
	d := newDeployment(t, "sqlite")
	d.save(paid{OrderID: "1", Note: "canary"})
	d.work(bus.Permanent(errors.New("no")))
	id := as[ops.Page[ops.Event]](t, d.ok("events", "list", "-o", "json")).Rows[0].EventID
	for _, args := range [][]string{
		{"events", "list"},
		{"events", "show", id},
		{"trace", "1"},
		{"dead", "list"},
		{"dead", "export"},
		{"status"},
	} {
		for _, format := range []string{"table", "json", "csv"} {
			require.NotContains(t, d.ok(append(args, "-o", format)...), "canary", "%v", args)
		}
	}
	require.NotContains(t, d.ok("audit", "list"), "payload")
	for _, args := range [][]string{{"events", "show", id, "--payload", "--reason", "r"}, {"dead", "export", "--payload", "--reason", "r"}} {
		r := d.bluecone(args...) // nobody has said what is personal
		require.Equal(t, 2, r.code)
		require.Contains(t, r.errors, "--personal none")
		require.NotContains(t, r.out, "canary")
	}
	require.NotContains(t, d.ok("audit", "list"), "payload")
	require.Contains(t, d.ok("events", "show", id, "--payload", "--reason", "r", "--personal", "phone,NOTE"), `"note":"(hidden)"`)
	require.Contains(t, d.ok("events", "show", id, "--payload", "--reason", "r", "--personal", "none"), `"note":"canary"`)
	require.Contains(t, d.ok("audit", "list", "--target", id), "payload")
	file := filepath.Join(t.TempDir(), "dead.ndjson")
	r := d.bluecone("dead", "export", "--payload", "--reason", "r", "--personal", "none", "--file", file)
	require.Zero(t, r.code, r.errors)
	require.Contains(t, r.errors, "1 delivery exported.")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	line := as[struct {
		Consumer string
		Payload  paid
	}](t, string(text))
	require.Equal(t, "Points", line.Consumer)
	require.Equal(t, "canary", line.Payload.Note)
	require.Len(t, as[ops.Page[ops.AuditRow]](t, d.ok("audit", "list", "--target", id, "-o", "json")).Rows, 3)
}

// A consumer is paused with an end, shown so, and resumed.
func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, d *deployment) {
		d.work(nil) // announces the consumers
		until := time.Now().UTC().Add(2 * time.Hour).Truncate(time.Minute)
		require.Contains(t, d.ok("consumers", "pause", "Points", "--until", until.Format(time.RFC3339), "--reason", "restart"),
			"Points is paused until "+until.Format(time.DateTime))
		all := as[[]ops.Consumer](t, d.ok("consumers", "list", "-o", "json"))
		require.Equal(t, ops.Paused, all[0].State)
		require.WithinDuration(t, until, all[0].PausedUntil, time.Minute)
		require.Equal(t, "restart", all[0].PauseReason)
		require.Contains(t, d.ok("consumers", "list"), "paused")
		require.Contains(t, d.ok("consumers", "resume", "Points", "--reason", "done"), "Points is resumed")
		require.Equal(t, ops.Running, as[[]ops.Consumer](t, d.ok("consumers", "list", "-o", "json"))[0].State)
		again := d.bluecone("consumers", "resume", "Points", "--reason", "again")
		require.Equal(t, reply{out: "Points is not paused, it is running\n"}, again)
		require.Len(t, as[ops.Page[ops.AuditRow]](t, d.ok("audit", "list", "--target", "Points", "-o", "json")).Rows, 2)
		require.Contains(t, d.ok("consumers", "retire", "Points", "--reason", "r"),
			"Points is retired until an instance announces it again: one has it and does so within 30 s")
	})
}

// A Replayable consumer runs again over what it has done.
func TestReplay(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, d *deployment) {
		d.save(paid{OrderID: "1"}, paid{OrderID: "2"})
		d.work(nil)
		require.Contains(t, d.ok("consumers", "replay", "Wallet", "--since", "1h", "--dry-run"), "replay 2 events")
		bulk := as[ops.Bulk](t, d.ok("consumers", "replay", "Wallet", "--since", "1h", "--reason", "r", "-o", "json"))
		require.EqualValues(t, 2, bulk.Done)
		id := as[ops.Page[ops.Event]](t, d.ok("events", "list", "-o", "json")).Rows[0].EventID
		d.work(nil)
		require.Contains(t, d.ok("consumers", "replay", "Wallet", "--event", id, "--reason", "r"), "is run again by Wallet")
	})
}

// An event that is missing is published by hand, inside the program that knows its type.
func TestPublishWhatIsMissing(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, d *deployment) {
		sample := d.shop("publish", "--type", "order.paid", "--sample")
		require.Zero(t, sample.code, sample.errors)
		require.Contains(t, sample.out, `"orderId": ""`)
		args := []string{"publish", "--type", "order.paid", "--payload", `{"orderId":"42","cents":500}`}
		r := d.shop(append(args, "--dry-run")...)
		require.Zero(t, r.code, r.errors)
		require.Contains(t, r.out, "dry run, nothing is changed: order.paid of ORDER 42")
		require.Contains(t, d.bluecone("events", "list").errors, "No such event.")

		r = d.shop(append(args, "--reason", "lost", "--output", "json")...)
		require.Zero(t, r.code, r.errors)
		first := as[ops.Published](t, r.out)
		require.True(t, first.Created)
		again := as[ops.Published](t, d.shop(append(args, "--reason", "lost", "-o", "json")...).out)
		require.Equal(t, first.EventID, again.EventID)
		require.False(t, again.Created, "to repeat it changes nothing")
		d.work(nil)
		require.Contains(t, d.ok("events", "show", first.EventID), "SENT")
		require.Contains(t, d.shop("trace", "42").out, "total of 42", "with the section of the shop")

		for says, wrong := range map[string][]string{
			`--type "order.pad" is not publishable: did you mean order.paid?`: {"--type", "order.pad", "--payload", "{}"},
			"--payload: ops: the payload is not one of order.paid":            {"--type", "order.paid", "--payload", `{"orderID":"1","euros":5}`},
		} {
			r := d.shop(append([]string{"publish", "--reason", "r"}, wrong...)...)
			require.Equal(t, 2, r.code)
			require.Contains(t, r.errors, says)
			require.Equal(t, 1, strings.Count(r.errors, "\n"), r.errors)
		}
	})
}

// Jobs of this program run at once; a check that repairs wants a reason.
func TestJobsAndChecks(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, d *deployment) {
		d.work(nil)
		require.Contains(t, d.shop("jobs", "list").out, consistency.JobCode)
		r := d.shop("jobs", "run", consistency.JobCode, "--reason", "r")
		require.Zero(t, r.code, r.errors)
		require.Contains(t, r.out, "has run: ")
		require.Contains(t, d.ok("jobs", "list", "-o", "csv"), consistency.JobCode, "everybody sees how it went")

		r = d.shop("check", "run")
		require.Equal(t, 2, r.code)
		require.Contains(t, r.errors, "--reason is missing")
		r = d.shop("check", "run", "--reason", "r")
		require.Zero(t, r.code, r.errors)
		require.Contains(t, r.out, "Every invariant holds")
		as[map[string]any](t, d.ok("check", "run", "--dry-run", "-o", "json")) // nothing but JSON
		require.Equal(t, "check,eventId,consumer,says\n", d.ok("check", "run", "--dry-run", "-o", "csv"))
		_, err := d.db.ExecContext(t.Context(), "UPDATE bc_outbox_event SET status = 'LOST'")
		require.NoError(t, err)
		d.save(paid{OrderID: "1"})
		_, err = d.db.ExecContext(t.Context(), "UPDATE bc_outbox_event SET status = 'LOST'")
		require.NoError(t, err)
		for _, program := range []func(...string) reply{d.bluecone, d.shop} {
			r = program("check", "run", "--dry-run")
			require.Equal(t, 1, r.code)
			require.Contains(t, r.out, "LOST")
			require.Contains(t, r.errors, "something is not as it must be")
		}
	})
}

// CSV has a header and as many fields in every line.
func TestCSV(t *testing.T) {
	t.Parallel()
	d := newDeployment(t, "sqlite")
	d.save(paid{OrderID: "a,\"b\""})
	d.work(bus.Permanent(errors.New("line one\nline two, \"quoted\"")))
	for command, header := range map[string]string{
		"events list":    "eventId,eventType,aggregateType,aggregateId,status,createdAt,deliveries,lastError",
		"consumers list": "consumer,state,waiting,failed,dead,oldest,lastSuccessAt,pausedUntilAt,pausedBy,types,lastError",
		"dead list":      "group,consumer,eventType,dead,failed,firstAt,lastAt,sampleEvent,error",
		"dead export":    "consumer,eventId,eventType,aggregateType,aggregateId,createdAt,attempts,error,payload",
		"jobs list":      "job,schedule,here,running,nextAt,lastAt,lastStatus,took,counts,error",
		"audit list":     "at,actor,action,target,reason,details",
		"bulk list":      "id,action,state,total,seen,done,passed,consumer,actor,createdAt,finishedAt,reason,error",
		"doctor":         "level,check,says,remedy",
		"migrate status": "version,name,appliedAt",
		"status":         "consumer,state,waiting,failed,dead,oldest,lastSuccessAt,pausedUntilAt,pausedBy,types,lastError",
		"trace a,\"b\"":  "at,kind,consumer,eventId,actor,says",
	} {
		out := d.ok(append(strings.Split(command, " "), "--output", "csv")...)
		rows, err := csv.NewReader(strings.NewReader(out)).ReadAll()
		require.NoError(t, err, command)
		require.Equal(t, header, strings.Join(rows[0], ","), command)
	}
}

// What somebody wrote into an event or an error cannot steer the terminal.
func TestNothingSteersTheTerminal(t *testing.T) {
	t.Parallel()
	d := newDeployment(t, "sqlite")
	const evil = "\x1b[2J\x1b]0;owned\x07\u009b31m\u202egnp.exe"
	d.save(paid{OrderID: "1", Note: evil})
	d.work(bus.Permanent(errors.New(evil)))
	_, err := d.db.ExecContext(t.Context(), "UPDATE bc_outbox_event SET aggregate_id = ?, event_payload = ?", "1"+evil, `{"note":"`+evil+`"}`)
	require.NoError(t, err)
	id := as[ops.Page[ops.Event]](t, d.ok("events", "list", "-o", "json")).Rows[0].EventID
	for _, args := range [][]string{
		{"events", "list"},
		{"events", "show", id, "--payload", "--personal", "none", "--reason", evil},
		{"trace", id},
		{"dead", "list"},
		{"status"},
		{"dead", "export", "--payload", "--personal", "none", "--reason", "r"},
		{"audit", "list"},
		{"consumers", "list"},
		{"trace", "nobody" + evil},
		{"events", "show", evil},
	} {
		for _, format := range []string{"table", "json", "csv"} {
			r := d.bluecone(append(args, "-o", format)...)
			for _, c := range []string{"\x1b", "\x07", "\u009b", "\u202e"} {
				require.NotContains(t, r.out+r.errors, c, "%v as %s", args, format)
			}
		}
	}
	require.Contains(t, d.ok("dead", "list"), `\x1b[2J`)
}

// What producers have reserved in the ledger is listed, for people and for programs, and told by its story.
func TestReservationsAreListed(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, d *deployment) {
		require.Equal(t, "[]\n", d.ok("reservations", "list", "-o", "json"))
		_, err := d.db.ExecContext(t.Context(), "INSERT INTO bc_reservation (token, event_id, caller, event_type, state, event, checks, "+
			"last_error, created_at, updated_at, expires_at, next_check_at) VALUES ('t', 'e1', 'shop', 'order.paid', 'PREPARED', '{}', 2, "+
			"'no answer', '2026-11-21 10:00:00', '2026-11-21 10:00:00', '2026-11-21 10:01:00', '2026-11-21 10:01:00')")
		require.NoError(t, err)
		require.Contains(t, d.ok("reservations", "list", "-o", "csv"), "e1,order.paid,shop,PREPARED,2026-11-21T10:00:00Z,2026-11-21T10:01:00Z,"+
			"true,2,2026-11-21T10:01:00Z,,no answer")
		require.Contains(t, d.ok("trace", "e1"), "shop reserved order.paid")
	})
}

// What relays and inboxes know of their brokers, and what these have brought, is listed, for people and for programs.
func TestBrokersAreListed(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, d *deployment) {
		require.Equal(t, "[]\n", d.ok("brokers", "list", "-o", "json"))
		require.Equal(t, "[]\n", d.ok("brokers", "brought", "-o", "json"))
		_, err := d.db.ExecContext(t.Context(), "INSERT INTO bc_inbox (inbox, partition_name, landed, duplicates, undecodable, last_offset) "+
			"VALUES ('shop', 'orders/0', 7, 2, 1, '42')")
		require.NoError(t, err)
		require.Contains(t, d.ok("brokers", "brought", "-o", "csv"), "shop,orders/0,7,2,1,42,,")
		require.Contains(t, d.ok("brokers", "brought"), "orders/0")
		_, err = d.db.ExecContext(t.Context(), "INSERT INTO bc_broker (role, name, instance, broker, state, window_size, unconfirmed, "+
			"last_error, last_error_at, seen_at) VALUES ('RELAY', 'Relay', 'one', 'nats://mq/ORDERS', 'AWAY', 512, 3, 'nobody listens', "+
			"'2026-11-21 10:00:00', '2026-11-21 10:01:00')")
		require.NoError(t, err)
		require.Contains(t, d.ok("brokers", "list", "-o", "csv"), "RELAY,Relay,nats://mq/ORDERS,GONE,0,512,-1,one,2026-11-21T10:01:00Z,"+
			"2026-11-21T10:00:00Z,nobody listens", "the instance has written nothing for long")
	})
}
