//go:build !race

package attack_test

import (
	"html"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/migrations"
)

func migrate(t *testing.T, db *bun.DB) error {
	t.Helper()
	return migrations.Up(t.Context(), db)
}

// A row nested eight million deep is a row like any other, not the end of the process that shows it.
func TestDeepRowsEndNothing(t *testing.T) {
	each(t, setup{Personal: []string{"phone"}}, func(t *testing.T, db *bun.DB, v *victim) {
		depth := 8 << 20
		doc := strings.Repeat("[", depth)
		if testdb.Dialect(testdb.Server(t, db)) == "postgres" { // takes no other
			doc = strings.Repeat("[", 3000) + strings.Repeat("]", 3000)
		}
		execSQL(t, db, "INSERT INTO bc_outbox_event (aggregate_type, aggregate_id, event_type, event_id, event_payload, event_metadata, "+
			"status) VALUES ('ORDER', '1', 'order.bought', 'deep', ?, ?, 'SENT')", doc, doc[:min(len(doc), 1<<20)])
		execSQL(t, db, "INSERT INTO bc_event_consume_log (consumer_name, event_id, event_type, status, consume_result) "+
			"VALUES ('Shop', 'deep', 'order.bought', 'SUCCESS', ?)", doc)
		for _, path := range []string{"/api/v1/event?id=deep", "/event?id=deep", "/events", "/api/v1/events", "/forensics?key=deep"} {
			code, _ := v.get("rita/viewer", path)
			require.Equal(t, http.StatusOK, code, path)
		}
		_, body := v.do("anna/admin", http.MethodPost, "/payload", url.Values{"id": {"deep"}})
		require.NotContains(t, body, "[[[[")
		code, _ := v.get("rita/viewer", "/events")
		require.Equal(t, http.StatusOK, code)
		require.LessOrEqual(t, v.peak(), maxResident)
	})
}

// A personal field is hidden wherever a page shows it, however it is written, although nobody has told the console of the
// type: its handler has.
func TestPersonalFieldsAreHiddenEverywhere(t *testing.T) {
	each(t, setup{Personal: []string{"userId"}}, func(t *testing.T, db *bun.DB, v *victim) {
		payload := `{"order":"1","PHONE":"555-1234","ph\u006fne":"555-1234","USERID":"u-77","deep":{"userid":"u-77"}}`
		execSQL(t, db, "INSERT INTO bc_outbox_event (aggregate_type, aggregate_id, event_type, event_id, event_payload, event_metadata, "+
			"status) VALUES ('ORDER', '1', 'order.bought', 'e1', ?, ?, 'SENT')",
			payload, `{"userId":"u-77","source":"web","phone":"555-1234"}`)
		execSQL(t, db, "INSERT INTO bc_event_consume_log (consumer_name, event_id, event_type, status, consume_result) "+
			"VALUES ('Shop', 'e1', 'order.bought', 'SUCCESS', ?)", `{"to":{"Phone":"555-1234"},"userID":"u-77","n":1}`)
		code, body := v.do("anna/admin", http.MethodPost, "/payload", url.Values{"id": {"e1"}})
		require.Equal(t, http.StatusOK, code)
		pages := []string{body}
		for _, path := range []string{
			"/event?id=e1", "/api/v1/event?id=e1", "/events", "/api/v1/events", "/forensics?key=e1",
			"/api/v1/forensics?key=e1",
		} {
			code, body := v.get("rita/viewer", path)
			require.Equal(t, http.StatusOK, code, path)
			pages = append(pages, body)
		}
		for _, page := range pages {
			require.NotContains(t, page, "555-1234")
			require.NotContains(t, page, "u-77")
		}
	})
}

// What an admin has skipped or discarded, only somebody who may do both makes due again: not by a retry, not in bulk.
func TestARetryUndoesNoSkip(t *testing.T) {
	each(t, setup{}, func(t *testing.T, db *bun.DB, v *victim) {
		execSQL(t, db, "INSERT INTO bc_outbox_event (aggregate_type, aggregate_id, event_type, event_id, event_payload, status) "+
			"VALUES ('ORDER', '1', 'order.bought', 'e1', '{}', 'FAILED')")
		execSQL(t, db, "INSERT INTO bc_event_consume_log (consumer_name, event_id, event_type, status, outbox_id, aggregate_type, "+
			"aggregate_id) SELECT 'Shop', event_id, event_type, 'DEAD', id, aggregate_type, aggregate_id FROM bc_outbox_event")
		status := func() (s string) {
			require.NoError(t, db.QueryRowContext(t.Context(), "SELECT status FROM bc_event_consume_log WHERE consumer_name = 'Shop'").Scan(&s))
			return s
		}
		form := url.Values{"id": {"e1"}, "consumer": {"Shop"}, "reason": {"r"}, "confirm": {"1"}}
		code, _ := v.do("anna/admin", http.MethodPost, "/skip", form)
		require.Equal(t, http.StatusSeeOther, code)
		code, _ = v.do("olaf/operator", http.MethodPost, "/retry", form)
		require.Equal(t, http.StatusConflict, code)
		code, _ = v.do("olaf/operator", http.MethodPost, "/reopen", form)
		require.Equal(t, http.StatusForbidden, code)
		bulk := url.Values{"action": {"reopen"}, "consumer": {"Shop"}, "deliveryStatus": {"SKIPPED"}, "reason": {"r"}, "confirm": {"1"}}
		code, _ = v.do("olaf/operator", http.MethodPost, "/bulk", bulk)
		require.Equal(t, http.StatusForbidden, code)
		require.Equal(t, "SKIPPED", status())
		code, _ = v.do("anna/admin", http.MethodPost, "/reopen", form)
		require.Equal(t, http.StatusSeeOther, code)
		require.Equal(t, "PENDING", status())
	})
}

// What a page says to paste into a shell stays what it says, whatever the ids are.
func TestRemediesCanBePasted(t *testing.T) {
	each(t, setup{}, func(t *testing.T, db *bun.DB, v *victim) {
		for i, id := range []string{"$(touch pwned)", "x; touch pwned", "--dsn=sqlite:///pwned"} {
			execSQL(t, db, "INSERT INTO bc_outbox_event (aggregate_type, aggregate_id, event_type, event_id, event_payload, status) "+
				"VALUES ('ORDER', ?, 'order.bought', ?, '{}', 'DEAD')", id, id)
			execSQL(t, db, "INSERT INTO bc_event_consume_log (consumer_name, event_id, event_type, status, error_message, outbox_id) "+
				"VALUES ('Shop', ?, 'order.bought', 'DEAD', 'no', ?)", id, i+1)
			for _, lang := range []string{"en", "zh"} {
				for _, path := range []string{"/api/v1/forensics?lang=", "/forensics?lang="} {
					code, body := v.get("rita/viewer", path+lang+"&key="+url.QueryEscape(id))
					require.Equal(t, http.StatusOK, code)
					body = html.UnescapeString(strings.ReplaceAll(body, `\u0026`, "&"))
					command := regexp.MustCompile(`bluecone events retry (.*?) --consumer (\S+) --reason`).FindStringSubmatch(body)
					require.NotNil(t, command, body)
					if strings.HasPrefix(id, "-") {
						require.NotContains(t, command[1], "dsn")
						continue
					}
					require.Equal(t, "'"+id+"'", command[1], path)
				}
			}
		}
	})
}

// A search is somebody else's text. Where the database would run a part of it, nobody searches.
func TestASearchIsNeverSQL(t *testing.T) {
	if len(testdb.Dialects()) < 4 {
		t.Skip("this is about PostgreSQL")
	}
	address := testdb.DSN(t, "postgres")
	db := testdb.OpenDSN(t, address)
	require.NoError(t, migrate(t, db))
	u, err := url.Parse(address)
	require.NoError(t, err)
	execSQL(t, db, "INSERT INTO bc_outbox_event (aggregate_type, aggregate_id, event_type, event_id, event_payload, event_metadata, "+
		"status) VALUES ('ORDER', '1', 'order.bought', 'e1', '{\"order\":\"secret-1\"}', '{}', 'SENT')")
	// pgx looks at the setting itself, but only where it writes arguments into statements.
	query := u.Query()
	query.Set("default_query_exec_mode", "exec")
	u.RawQuery = query.Encode()
	address = u.String()
	search := "/api/v1/events?aggregateType=ORDER&aggregateId=" +
		url.QueryEscape(`\') UNION SELECT 1, 1, (SELECT event_payload::text FROM bc_outbox_event LIMIT 1), '', 1, '' -- `)
	v := start(t, setup{DSN: address})
	code, _ := v.get("rita/viewer", search)
	require.Equal(t, http.StatusOK, code, "a text like any other")
	execSQL(t, db, "ALTER DATABASE "+strings.TrimPrefix(u.Path, "/")+" SET standard_conforming_strings = off")
	v = start(t, setup{DSN: address})
	code, body := v.get("rita/viewer", search)
	require.Equal(t, http.StatusInternalServerError, code)
	require.NotContains(t, body, "secret-1")
	require.Contains(t, body, "reference", "the console itself refused, not the database")
}
