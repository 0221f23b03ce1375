package web_test

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/demo/bluecone/monolith"
	"github.com/bluecone-go/bluecone/demo/bluecone/settings"
	"github.com/bluecone-go/bluecone/demo/bluecone/web"
	"github.com/bluecone-go/bluecone/internal/hostile"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// client sends requests straight to the handler.
type client struct {
	t       *testing.T
	handler http.Handler
}

func (c client) do(method, path, body, key string) (int, map[string]any) {
	c.t.Helper()
	r := httptest.NewRequestWithContext(c.t.Context(), method, "/", strings.NewReader(body))
	r.URL, r.Host = &url.URL{Path: path}, "localhost"
	r.Header.Set("Idempotency-Key", key)
	w := httptest.NewRecorder()
	c.handler.ServeHTTP(w, r)
	var said map[string]any
	if w.Code == http.StatusTemporaryRedirect { // a path that is not in its shortest form
		return w.Code, nil
	}
	require.NoError(c.t, json.Unmarshal(w.Body.Bytes(), &said), "%s %q %q: %s", method, path, body, w.Body)
	return w.Code, said
}

func (c client) order() string {
	_, u := c.do("POST", "/users", `{"walletCents":1000}`, "")
	body, err := json.Marshal(map[string]any{"userId": u["userId"], "totalCents": 100, "walletCents": 100})
	require.NoError(c.t, err)
	code, o := c.do("POST", "/orders", string(body), "")
	require.Equal(c.t, 201, code, o)
	return o["orderId"].(string)
}

// refused checks an answer that refuses the value of a field.
func (c client) refused(code int, said map[string]any, what string) {
	c.t.Helper()
	if code == http.StatusTemporaryRedirect {
		return
	}
	require.Contains(c.t, []int{400, 404}, code, "%s: %v", what, said)
	require.NotEmpty(c.t, said["error"], what)
	require.NotEmpty(c.t, said["code"], what)
}

// Whatever a client sends is refused in words or kept apart from all else: never a 5xx, never another's.
func TestHostileRequests(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		app, err := monolith.New(t.Context(), monolith.Options{DB: db, Settings: settings.Default(), Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		c := client{t, web.New(app, web.Config{Metrics: http.NotFoundHandler()})}
		known := make(map[string]bool) // users, by the key they were asked for with
		for _, v := range append(hostile.Values(), hostile.Huge()) {
			quoted := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "\r", `\r`, "\t", `\t`, "\x00", `\u0000`, "\x1b", `\u001b`,
				"\x7f", `\u007f`).Replace(v.Text) + `"`
			for _, path := range []string{"/orders/" + v.Text, "/orders/" + v.Text + "/timeline", "/users/" + v.Text + "/assets"} {
				code, said := c.do("GET", path, "", "")
				c.refused(code, said, v.Name)
			}
			code, said := c.do("POST", "/orders/"+v.Text+"/cancel", "", "")
			c.refused(code, said, v.Name)
			code, said = c.do("POST", "/orders", `{"totalCents":100,"userId":`+quoted+`}`, "")
			c.refused(code, said, v.Name)
			o := c.order()
			code, said = c.do("POST", "/orders/"+o+"/pay", `{"payNo":`+quoted+`}`, "")
			if code == 200 {
				var payNo string
				require.NoError(t, db.QueryRowContext(t.Context(), "SELECT pay_no FROM demo_payment WHERE order_id = ?", o).Scan(&payNo))
				require.Equal(t, v.Text, payNo, v.Name)
				code, said = c.do("POST", "/orders/"+o+"/refund", `{"refundId":`+quoted+`}`, "")
			}
			if code != 200 {
				c.refused(code, said, v.Name)
			}
			code, u := c.do("POST", "/users", `{}`, v.Text)
			if code != 201 {
				c.refused(code, u, v.Name)
				continue
			}
			id := u["userId"].(string)
			require.False(t, known[id], "%s is another's", v.Name)
			known[id] = true
		}
		require.Greater(t, len(known), 20)
	})
}

// Bodies that are no JSON, or too much of it.
func TestHostileBodies(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		app, err := monolith.New(t.Context(), monolith.Options{DB: db, Settings: settings.Default(), Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		c := client{t, web.New(app, web.Config{Metrics: http.NotFoundHandler()})}
		for _, body := range []string{
			hostile.Deep(32), hostile.Deep(100_000), `{"userId":"\ud800","totalCents":1}`, `{"userId":"` + hostile.Huge().Text + `"}`,
			`{"totalCents":1e999}`, `{"totalCents":9223372036854775808}`,
			`{"totalCents":-1}`, `{"totalCents":1.5}`, `{"nobody":1}`, `{} {}`, `[1]`, `"text"`, "\x00", "\ufeff{}", "TZ=0", `{"userId":`,
		} {
			for _, path := range []string{"/orders", "/users"} {
				code, said := c.do("POST", path, body, "")
				c.refused(code, said, body[:min(len(body), 50)])
			}
		}
	})
}
