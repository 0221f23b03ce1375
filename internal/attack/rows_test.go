package attack_test

import (
	"net/http"
	"net/url"
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
		execSQL(t, db, "INSERT INTO bc_outbox_event (aggregate_type, aggregate_id, event_type, event_id, event_payload, event_metadata, status) VALUES ('ORDER', '1', 'order.bought', 'deep', ?, ?, 'SENT')", doc, doc[:min(len(doc), 1<<20)])
		execSQL(t, db, "INSERT INTO bc_event_consume_log (consumer_name, event_id, event_type, status, consume_result) VALUES ('Shop', 'deep', 'order.bought', 'SUCCESS', ?)", doc)
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
		execSQL(t, db, "INSERT INTO bc_outbox_event (aggregate_type, aggregate_id, event_type, event_id, event_payload, event_metadata, status) VALUES ('ORDER', '1', 'order.bought', 'e1', ?, ?, 'SENT')",
			payload, `{"userId":"u-77","source":"web","phone":"555-1234"}`)
		execSQL(t, db, "INSERT INTO bc_event_consume_log (consumer_name, event_id, event_type, status, consume_result) VALUES ('Shop', 'e1', 'order.bought', 'SUCCESS', ?)", `{"to":{"Phone":"555-1234"},"userID":"u-77","n":1}`)
		code, body := v.do("anna/admin", http.MethodPost, "/payload", url.Values{"id": {"e1"}})
		require.Equal(t, http.StatusOK, code)
		pages := []string{body}
		for _, path := range []string{"/event?id=e1", "/api/v1/event?id=e1", "/events", "/api/v1/events", "/forensics?key=e1", "/api/v1/forensics?key=e1"} {
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
