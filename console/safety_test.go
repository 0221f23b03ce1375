package console

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/doctor"
	"github.com/bluecone-go/bluecone/ops"
)

// hostile are texts that want to be more than text.
func hostile() []string {
	return []string{
		`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `' onmouseover='alert(1)`, `javascript:alert(1)`,
		`</title><script>alert(1)</script>`, `</textarea><script>alert(1)</script>`,
		`<svg/onload=alert(1)>`, `{{.}}`, `--><script>alert(1)</script>`, "\"\n autofocus onfocus=alert(1) x=\"",
		`<a href="data:text/html,<script>alert(1)</script>">`, `&lt;script&gt;`, `" hx-get="https://evil.example" hx-trigger="load`,
		`</style><script>`, "\x00<b>", `\u003cscript\u003e`, `<iframe srcdoc="x">`, `x" hx-on:click="alert(1)`,
	}
}

// shape is the elements of a page with the names of their attributes: all that a text must not change.
func shape(page []*element) []string {
	s := make([]string, len(page))
	for i, e := range page {
		s[i] = e.name + " " + strings.Join(slices.Sorted(maps.Keys(e.attrs)), " ")
	}
	return s
}

// A hostile text in any place that the outside decides adds no element, no attribute and no address.
func TestHostileTextsStayTexts(t *testing.T) {
	t.Parallel()
	plain := consoleOf(&fake{text: "plain", count: 3}, everything())
	for _, text := range hostile() {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			c := consoleOf(&fake{text: text, count: 3}, everything())
			q := url.QueryEscape(text)
			pages := append(allPages(), "events?eventType="+q+"&aggregateId="+q+"&consumer="+q+"&fingerprint="+q, "forensics?key="+q,
				"audit?target="+q, "publish?payload="+q+"&eventType="+q, "?done="+q+"&n="+q+"&lang="+q, "nothing"+strings.ReplaceAll(q, "%", "x"),
				"events?status="+q)
			for _, page := range pages {
				w, want := get(c, "/"+page), get(plain, "/"+strings.ReplaceAll(page, q, "plain"))
				require.Equal(t, want.Code, w.Code, page)
				doc := parseHTML(t, w.Body.String())
				require.Equal(t, shape(parseHTML(t, want.Body.String())), shape(doc), page)
				requireHarmless(t, doc, page)
			}
			w := post(c, "/payload", url.Values{"id": {text}})
			doc := parseHTML(t, w.Body.String())
			require.Equal(t, shape(parseHTML(t, post(plain, "/payload", url.Values{"id": {"plain"}}).Body.String())), shape(doc))
			requireHarmless(t, doc, "payload")
		})
	}
}

func requireHarmless(t *testing.T, doc []*element, page string) {
	t.Helper()
	for _, e := range doc {
		for name, value := range e.attrs {
			require.False(t, strings.HasPrefix(name, "on") || name == "style" || strings.HasPrefix(name, "hx-on") || name == "hx-vals",
				"%s: <%s %s>", page, e.name, name)
			if slices.Contains([]string{"href", "src", "action", "hx-get", "hx-post", "formaction"}, name) {
				u, err := url.Parse(value)
				require.NoError(t, err, value)
				require.True(t, u.Scheme == "" && u.Host == "" || strings.HasPrefix(value, "https://traces.example/"), "%s: %s=%q", page, name, value)
			}
		}
		if e.name == "script" || e.name == "style" {
			require.Empty(t, e.inside, "%s: an inline %s", page, e.name)
		}
	}
}

// Payloads are nowhere, but where somebody with the permission asked for one.
func TestPayloadsAreHidden(t *testing.T) {
	t.Parallel()
	f := &fake{text: "x", count: 3}
	c := consoleOf(f, everything())
	for _, page := range allPages() {
		require.False(t, strings.Contains(get(c, "/"+page).Body.String(), canary), page)
		api := strings.Replace("/api/v1/"+page, "/api/v1/?", "/api/v1/overview?", 1)
		require.NotContains(t, get(c, api).Body.String(), canary, page)
	}
	require.NotContains(t, f.done(), "payload anna e1")
	require.Contains(t, post(c, "/payload", url.Values{"id": {"e1"}}).Body.String(), canary)
	require.Contains(t, f.done(), "payload anna e1") // which ops audits
	require.Contains(t, postJSON(c, "/api/v1/payload", `{"id":"e1"}`).Body.String(), canary)
	admin := consoleOf(&fake{text: "x"}, Principal{Name: "anna", May: Admin()})
	require.NotContains(t, get(admin, "/event?id=e1").Body.String(), `action="payload"`)
	require.Equal(t, http.StatusForbidden, post(admin, "/payload", url.Values{"id": {"e1"}}).Code)
}

// All that a browser fetches is here, and it is little.
func TestAssetsAreSmallAndOurs(t *testing.T) {
	t.Parallel()
	c := consoleOf(&fake{text: "x"}, everything())
	total := 0
	outside := regexp.MustCompile(`(?i)(?:url\(|@import|src=|href=|fetch\(|import\()["' ]*(?:https?:)?//`)
	for name, content := range c.assets.files {
		total += len(content)
		require.Regexp(t, `\.[0-9a-f]{12}\.`, name)
		require.NotRegexp(t, outside, string(content), name)
	}
	require.Less(t, total, 200_000)
	page := get(c, "/").Body.String()
	require.NotRegexp(t, outside, page)
}

// Nothing here can be made to fetch an address: there is no HTTP client, dialer or resolver to ask.
func TestNoClientIsUsed(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-f", `{{join .Imports "\n"}}{{range .GoFiles}}{{"\nfile "}}{{.}}{{end}}`,
		".").Output()
	require.NoError(t, err)
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSpace(line)
		file, isFile := strings.CutPrefix(line, "file ")
		if !isFile {
			require.NotContains(t, []string{"net/http/httputil", "net/rpc", "net/smtp", "os/exec", "crypto/tls"}, line)
			continue
		}
		code, err := exec.CommandContext(t.Context(), "cat", file).Output()
		require.NoError(t, err)
		for _, client := range []string{
			"http.Get", "http.Post", "http.Head(", "http.Client", "http.DefaultClient", "http.Transport",
			"NewRequest", "net.Dial", "net.Lookup", "Resolver", "ReverseProxy",
		} {
			require.NotContains(t, string(code), client, file)
		}
	}
}

// What programs get keeps its digits, and errors are RFC 9457.
func TestAPI(t *testing.T) {
	t.Parallel()
	f := &fake{text: "x", count: 3}
	c := consoleOf(f, everything())
	var list struct{ Rows []map[string]any }
	w := get(c, "/api/v1/events")
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &list))
	require.Equal(t, "1152921504606846976", list.Rows[0]["outboxId"])
	require.Equal(t, "application/json", w.Header().Get("Content-Type"))
	for _, p := range c.pages() {
		q := map[string]string{"event": "?id=x", "forensics": "?key=x", "bulk": "?id=x", "bulk-new": "?action=retry"}[p.name]
		require.Equal(t, http.StatusOK, get(c, "/api/v1/"+p.name+q).Code, p.name)
	}
	for _, bad := range []struct {
		code int
		w    func() (int, string, string)
	}{
		{http.StatusNotFound, func() (int, string, string) {
			w := get(c, "/api/v1/event?id=missing")
			return w.Code, w.Header().Get("Content-Type"), w.Body.String()
		}},
		{http.StatusBadRequest, func() (int, string, string) {
			w := get(c, "/api/v1/events?limit=99999999")
			return w.Code, w.Header().Get("Content-Type"), w.Body.String()
		}},
		{http.StatusBadRequest, func() (int, string, string) {
			w := postJSON(c, "/api/v1/retry", `{"id":{"a":1},"reason":"x"}`)
			return w.Code, w.Header().Get("Content-Type"), w.Body.String()
		}},
		{http.StatusBadRequest, func() (int, string, string) {
			w := postJSON(c, "/api/v1/retry", `{"id":"e1"}`)
			return w.Code, w.Header().Get("Content-Type"), w.Body.String()
		}},
		{http.StatusConflict, func() (int, string, string) {
			w := postJSON(c, "/api/v1/bulk", `{"action":"retry","reason":"r","confirm":2}`)
			return w.Code, w.Header().Get("Content-Type"), w.Body.String()
		}},
	} {
		code, contentType, body := bad.w()
		require.Equal(t, bad.code, code, body)
		require.Equal(t, "application/problem+json", contentType)
		var p problem
		require.NoError(t, json.Unmarshal([]byte(body), &p))
		require.Equal(t, bad.code, p.Status)
		require.NotEmpty(t, p.Detail)
	}
}

// A state without its colour looks like plain text.
func TestEveryToneHasItsColour(t *testing.T) {
	t.Parallel()
	css, err := os.ReadFile("assets/console.css")
	require.NoError(t, err)
	for state, l := range looks() {
		require.Contains(t, string(css), "\n.tone-"+l.tone+" {", state)
	}
	for _, level := range []any{ops.OK, ops.Info, ops.Warn, ops.Bad, doctor.OK, doctor.Warn, doctor.Fail} {
		require.Contains(t, string(css), "\n.tone-"+tone(level)+" {", level)
	}
}
