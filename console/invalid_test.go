package console

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/migrations"
	"github.com/bluecone-go/bluecone/ops"
	"github.com/bluecone-go/bluecone/outbox"
)

// Whatever is wrong with a request is said as 400 in a sentence that names the field, by the pages and
// by the API alike: it is the sender's mistake, and never looks like ours.
func TestWrongRequestsAreToldWhatIsWrong(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t, "sqlite")
	require.NoError(t, migrations.Up(t.Context(), db))
	ob, err := outbox.New(db, outbox.Config{Logger: quiet()})
	require.NoError(t, err)
	o, err := ops.New(db, ob, ops.Config{Logger: quiet()})
	require.NoError(t, err)
	c, err := New(o, Config{Authorize: Anyone(everything()), Logger: quiet()})
	require.NoError(t, err)
	for address, says := range map[string]string{
		"events?cursor=nonsense":               "is not a cursor",
		"events?status=LOST":                   "status must be one of",
		"events?since=yesterday":               "since must be a time",
		"events?limit=0":                       "limit must be a whole number",
		"events?tenantId=x":                    "tenantId must be a whole number",
		"events?deliveryStatus=DEAD":           "deliveryStatus needs consumer",
		"events?eventId=a%00b":                 "event id",
		"events?fingerprint=x":                 "fingerprint",
		"events?since=1h&until=2h":             "before it begins",
		"event":                                "event id is empty",
		"event?id=%ff":                         "event id",
		"forensics?key=%00":                    "key",
		"audit?cursor=-3":                      "is not a cursor",
		"bulks?cursor=x":                       "is not a cursor",
		"bulk-new?action=explode":              "action must be one of",
		"bulk-new?action=retry":                "name a status",
		"bulk-new?action=skip&status=DEAD":     "consumer is missing",
		"bulk-new?action=retry&since=tomorrow": "since must be a time",
	} {
		w := get(c, "/api/v1/"+address)
		require.Equal(t, http.StatusBadRequest, w.Code, "%s: %s", address, w.Body)
		var p problem
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &p))
		require.Contains(t, p.Detail, says, address)
		w = get(c, "/"+address)
		require.Equal(t, http.StatusBadRequest, w.Code, address)
		require.Contains(t, w.Body.String(), strings.Fields(says)[0], address)
	}
	for route, body := range map[string]string{
		"retry":       `{"id":"","reason":"x"}`,
		"skip":        `{"id":"1","confirm":1,"reason":"x"}`,
		"pause":       `{"consumer":"","reason":"x"}`,
		"bulk-cancel": `{"id":"1","reason":"` + strings.Repeat("x", 2001) + `"}`,
		"publish":     `{"eventType":"nobody","payload":"{}","reason":"x"}`,
	} {
		w := postJSON(c, "/api/v1/"+route, body)
		require.Equal(t, http.StatusBadRequest, w.Code, "%s: %s", route, w.Body)
	}
}
