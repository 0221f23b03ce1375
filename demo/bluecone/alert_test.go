package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/alert"
)

// Two instances of the monolith tell log and webhook of a DEAD delivery once, with a link to the
// console; the webhook is told in the way its secret demands.
func TestAlertsReachLogAndWebhook(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, dsn string) {
		var mu sync.Mutex
		var got []alert.Notice
		hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			h := hmac.New(sha256.New, []byte("s3cret"))
			_, _ = h.Write([]byte(r.Header.Get(alert.TimestampHeader) + "." + string(body)))
			var n alert.Notice
			if err != nil || json.Unmarshal(body, &n) != nil || r.Header.Get(alert.SignatureHeader) != "v1="+hex.EncodeToString(h.Sum(nil)) {
				w.WriteHeader(http.StatusBadRequest)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			got = append(got, n)
		}))
		defer hook.Close()
		env := []string{
			"BLUECONE_ALERT_CRON=* * * * * ?", "BLUECONE_ALERT_ENVIRONMENT=test",
			"BLUECONE_ALERT_CONSOLE=https://ops.example/console/", "BLUECONE_ALERT_WEBHOOK_URL=" + hook.URL, "BLUECONE_ALERT_WEBHOOK_SECRET=s3cret",
		}
		a, b := serveOn(t, dsn, env, "--faults"), serveOn(t, dsn, env, "--faults")
		for _, s := range []*server{a, b} {
			require.Equal(t, 200, s.post("/faults", `{"consumer":"PointsConsumer","mode":"permanent"}`).status)
		}
		a.place()
		a.quiet()
		said := func(s *server) int { return len(logLines(s.stderr.String(), "alert")) }
		a.eventually(func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(got) == 1 && said(a)+said(b) == 1
		}, "one message")
		for range 3 { // further looks say nothing new
			_ = a.post("/jobs/alert/run", "")
			_ = b.post("/jobs/alert/run", "")
		}
		mu.Lock()
		defer mu.Unlock()
		require.Len(t, got, 1)
		n := got[0]
		require.Equal(t, "dead PointsConsumer order.checkout_locked test", n.Rule+" "+n.Subject+" "+n.Environment)
		require.Equal(t, "https://ops.example/console/events?consumer=PointsConsumer&deliveryStatus=DEAD&eventType=order.checkout_locked", n.Link)
		require.Equal(t, "docs/operations.md#dead", n.Runbook)
	})
}
