package console

import (
	"context"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/crowd"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/ops"
	"github.com/bluecone-go/bluecone/outbox"
)

// ofTwo stands in every text of the other tenant.
const ofTwo = "secret-of-two"

// sold is an event that the console may publish.
type sold struct{}

func (sold) EventType() string            { return "order.paid" }
func (sold) Aggregate() (kind, id string) { return "ORDER", "7" }

// twoTenants is a console on a database in which tenant 2 has an event of everything.
func twoTenants(t *testing.T, db *bun.DB) func(p Principal) *Console {
	t.Helper()
	exec := func(query string, args ...any) {
		_, err := db.ExecContext(t.Context(), query, args...)
		require.NoError(t, err, query)
	}
	exec("INSERT INTO bc_consumer (name, event_types, aliases) VALUES ('Shop', '[\"order.paid\"]', '')")
	for tenant := 1; tenant <= 2; tenant++ { // the latest is the other's
		id := map[int]string{1: "mine", 2: "theirs"}[tenant]
		word := map[int]string{1: "hello-of-one", 2: ofTwo}[tenant]
		exec("INSERT INTO bc_outbox_event (tenant_id, aggregate_type, aggregate_id, event_type, event_id, event_payload, event_metadata, "+
			"trace_id, last_error, status) VALUES (?, 'ORDER', '7', 'order.paid', ?, ?, ?, 'trace', ?, 'DEAD')", tenant, id, `{"x":"`+word+`"}`,
			`{"source":"`+word+`"}`, word)
		exec("INSERT INTO bc_event_consume_log (tenant_id, consumer_name, event_id, event_type, status, error_message, consume_result, "+
			"idempotency_key, aggregate_type, aggregate_id) VALUES (?, 'Shop', ?, 'order.paid', 'DEAD', ?, ?, 'key', 'ORDER', '7')", tenant, id,
			word, `{"x":"`+word+`"}`)
		exec("INSERT INTO bc_delivery_attempt (consumer_name, event_id, attempt, outcome, error_message, instance, duration_us) "+
			"VALUES ('Shop', ?, 1, 'DEAD', ?, 'i', 1)", id, word)
		exec("INSERT INTO bc_audit_log (actor, action, target, reason, details) "+
			"VALUES ('anna', 'look', ?, ?, ?), ('reaper', 'release', 'ORDER/7', ?, ?)", id, word, word, word, word)
	}
	exec("INSERT INTO bc_job_run (job_code, instance, status, error_message) VALUES ('j', 'i', 'FAILED', ?)", ofTwo)
	exec("INSERT INTO bc_job_lease (job_code) VALUES ('j')")
	ob, err := outbox.New(db, outbox.Config{Logger: quiet()})
	require.NoError(t, err)
	o, err := ops.New(db, ob, ops.Config{Logger: quiet(), Publishable: []bus.Event{sold{}}})
	require.NoError(t, err)
	_, err = o.StartBulk(context.Background(), ops.Operation{Actor: "anna", Reason: ofTwo},
		ops.NewBulk{ID: "bulk-of-two", Action: ops.ActionRetry, Query: ops.Query{TenantID: 2, Consumer: "Shop"}})
	require.NoError(t, err)
	return func(p Principal) *Console {
		c, err := New(o, Config{Authorize: Anyone(p), Logger: quiet()})
		require.NoError(t, err)
		return c
	}
}

// ways are parameters that may lead to the other tenant, for every page.
func ways() []string {
	return []string{
		"", "?id=theirs", "?id=bulk-of-two", "?key=7", "?key=ORDER/7", "?key=theirs", "?key=key", "?key=trace", "?tenantId=2",
		"?aggregateId=7", "?traceId=trace", "?idempotencyKey=key", "?consumer=Shop", "?status=DEAD", "?eventId=theirs",
		"?target=theirs", "?target=ORDER/7", "?action=retry&consumer=Shop", "?action=discard&status=DEAD&tenantId=2", "?limit=500",
	}
}

// Every page and every action, in both forms and as live updates, for somebody who is limited to a tenant: nothing of the
// other one is shown or changed. The routes are those that the console registers.
func TestNoRouteLeadsToAnotherTenant(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		at := twoTenants(t, db)
		limited := at(Principal{Name: "mallory", May: everything().May, Tenants: []int64{1}})
		all := at(everything())
		revealed := make(map[string]bool)
		for _, p := range limited.pages() {
			for _, path := range []string{"/api/v1/" + p.name, "/" + map[bool]string{true: "", false: p.name}[p.name == "overview"]} {
				for _, way := range ways() {
					limited.crowd, all.crowd = crowd.New(maxPrincipals), crowd.New(maxPrincipals)
					require.NotContains(t, get(limited, path+way).Body.String(), ofTwo, path+way)
					require.NotContains(t, get(limited, path+way, "HX-Request", "true").Body.String(), ofTwo, path+way)
				}
			}
			for _, way := range ways() {
				all.crowd = crowd.New(maxPrincipals)
				revealed[p.name] = revealed[p.name] || strings.Contains(get(all, "/api/v1/"+p.name+way).Body.String(), ofTwo)
			}
		}
		for _, name := range []string{
			"overview", "events", "event", "forensics", "consumers", "dead", "jobs", "bulks", "bulk", "bulk-new",
			"audit",
		} {
			require.True(t, revealed[name], "the page %s shows it to who may see it: this test looks", name)
		}
		before := stateOf(t, db)
		for _, a := range limited.actions() {
			limited.crowd = crowd.New(maxPrincipals)
			form := formOf(a.name)
			w := post(limited, "/"+a.name, form)
			require.NotContains(t, w.Body.String(), ofTwo, a.name)
			if a.name != "bulk" { // it starts one that finds nothing
				require.GreaterOrEqual(t, w.Code, http.StatusBadRequest, a.name)
			}
			require.NotContains(t, postJSON(limited, "/api/v1/"+a.name, asJSON(form)).Body.String(), ofTwo, a.name)
		}
		require.Equal(t, before, stateOf(t, db))
		for _, a := range all.actions() { // the forms are good: somebody who may see everything succeeds with the same
			prepare(t, db, a.name)
			all.crowd = crowd.New(maxPrincipals)
			w := post(all, "/"+a.name, formOf(a.name))
			require.Less(t, w.Code, http.StatusBadRequest, "%s: %s", a.name, w.Body)
		}
	})
}

// formOf is a form that an action takes, about what is the other tenant's.
func formOf(action string) url.Values {
	form := url.Values{
		"id": {"theirs"}, "consumer": {"Shop"}, "reason": {"r"}, "confirm": {"1"}, "code": {"j"}, "minutes": {"5"}, "action": {"discard"},
		"tenantId": {"2"}, "status": {"DEAD"}, "eventType": {"order.paid"}, "payload": {"{}"},
	}
	if action == "bulk-cancel" || action == "bulk-resume" {
		form.Set("id", "bulk-of-two")
	}
	for _, a := range new(Console).actions() {
		if a.name == action {
			takes := slices.Concat(a.takes, ofEveryAction())
			maps.DeleteFunc(form, func(field string, _ []string) bool { return !slices.Contains(takes, field) })
		}
	}
	return form
}

// prepare brings what is the other tenant's into a state that allows an action.
func prepare(t *testing.T, db *bun.DB, action string) {
	t.Helper()
	status := map[string]string{"reopen": "SKIPPED", "replay": "SUCCESS"}[action]
	if status == "" {
		status = "DEAD"
	}
	event := map[string]string{"DEAD": "DEAD", "SKIPPED": "SENT", "SUCCESS": "SENT"}[status]
	state := map[string]string{"bulk-cancel": "RUNNING", "bulk-resume": "CANCELED"}[action]
	for _, do := range []struct {
		query string
		arg   string
	}{
		{"UPDATE bc_consumer SET replayable = 1, event_types = ?", `["order.paid"]`},
		{"UPDATE bc_outbox_event SET status = ? WHERE event_id = 'theirs'", event},
		{"UPDATE bc_event_consume_log SET status = ?, outbox_id = (SELECT id FROM bc_outbox_event WHERE event_id = 'theirs') " +
			"WHERE event_id = 'theirs'", status},
		{"UPDATE bc_bulk_operation SET state = ? WHERE operation_id = 'bulk-of-two'", state},
	} {
		if do.arg == "" {
			continue
		}
		_, err := db.ExecContext(t.Context(), do.query, do.arg)
		require.NoError(t, err, do.query)
	}
}

// Whoever tries to change what belongs to another tenant is answered as if it were not there, and that is written down.
func TestAttemptsAtAnotherTenantAreAudited(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		at := twoTenants(t, db)
		mallory := at(Principal{Name: "mallory", May: everything().May, Tenants: []int64{1}})
		for _, action := range []string{"retry", "reopen", "skip", "discard", "replay", "payload", "bulk-cancel", "bulk-resume"} {
			form := formOf(action)
			form.Set("id", "nobodys")
			none := postJSON(mallory, "/api/v1/"+action, asJSON(form))
			require.NotContains(t, refusedOf(t, db, "mallory"), action, "there is no such thing")
			form = formOf(action)
			theirs := postJSON(mallory, "/api/v1/"+action, asJSON(form))
			require.Equal(t, http.StatusNotFound, theirs.Code, action)
			require.Equal(t, none.Body.String(), strings.ReplaceAll(theirs.Body.String(), form.Get("id"), "nobodys"), action)
			require.Contains(t, refusedOf(t, db, "mallory"), action)
		}
		several := formOf("skip")
		several["id"], several["confirm"] = []string{"nobodys", "theirs"}, []string{"2"}
		trudy := at(Principal{Name: "trudy", May: everything().May, Tenants: []int64{1}})
		require.Equal(t, http.StatusSeeOther, post(trudy, "/skip", several).Code)
		require.Equal(t, []string{"skip"}, refusedOf(t, db, "trudy"))
	})
}

// refusedOf are the routes at which somebody was refused, by the audit log.
func refusedOf(t *testing.T, db *bun.DB, actor string) (routes []string) {
	t.Helper()
	found, err := db.QueryContext(t.Context(), "SELECT target FROM bc_audit_log WHERE actor = ? AND action = 'refused' ORDER BY id", actor)
	require.NoError(t, err)
	defer found.Close()
	for found.Next() {
		var s string
		require.NoError(t, found.Scan(&s))
		routes = append(routes, s)
	}
	require.NoError(t, found.Err())
	return routes
}

// stateOf is what the actions could have changed of the other tenant, or of all.
func stateOf(t *testing.T, db *bun.DB) (rows []string) {
	t.Helper()
	found, err := db.QueryContext(t.Context(), "SELECT status FROM bc_outbox_event WHERE tenant_id = 2 UNION ALL SELECT status "+
		"FROM bc_event_consume_log WHERE tenant_id = 2 UNION ALL "+
		"SELECT state FROM bc_bulk_operation WHERE operation_id = 'bulk-of-two' UNION ALL SELECT COALESCE(paused_by, '-') FROM bc_consumer")
	require.NoError(t, err)
	defer found.Close()
	for found.Next() {
		var s string
		require.NoError(t, found.Scan(&s))
		rows = append(rows, s)
	}
	require.NoError(t, found.Err())
	return rows
}
