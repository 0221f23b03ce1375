package console

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func everything() Principal { return Principal{Name: "anna", May: append(Admin(), PayloadView)} }

// consoleOf is a console on a fake deployment.
func consoleOf(f *fake, p Principal) *Console {
	return newConsole(f, Config{Authorize: Anyone(p), Logger: quiet()})
}

func send(h http.Handler, method, target string, body io.Reader, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, body)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func get(h http.Handler, target string, header ...string) *httptest.ResponseRecorder {
	return send(h, http.MethodGet, target, nil, header...)
}

func post(h http.Handler, target string, form url.Values, header ...string) *httptest.ResponseRecorder {
	return send(h, http.MethodPost, target, strings.NewReader(form.Encode()), append(header, "Content-Type", "application/x-www-form-urlencoded")...)
}

func postJSON(h http.Handler, target, body string, header ...string) *httptest.ResponseRecorder {
	return send(h, http.MethodPost, target, strings.NewReader(body), append(header, "Content-Type", "application/json")...)
}

func parseHTML(t *testing.T, body string) *html.Node {
	t.Helper()
	n, err := html.Parse(strings.NewReader(body))
	require.NoError(t, err)
	return n
}

func attr(n *html.Node, name string) (string, bool) {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val, true
		}
	}
	return "", false
}

// allPages are addresses of every page, with what they need to show something.
func allPages() []string {
	return []string{
		"", "events", "events?status=DEAD&consumer=c", "event?id=e", "forensics", "forensics?key=k", "forensics?key=missing", "consumers", "dead", "jobs", "instances", "bulks", "bulk?id=b",
		"bulk-new?action=retry&consumer=c", "bulk-new?action=discard&status=DEAD", "publish", "audit", "audit?target=x", "doctor",
	}
}
