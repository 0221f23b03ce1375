package console

import (
	"encoding/xml"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
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
	return send(h, http.MethodPost, target, strings.NewReader(form.Encode()),
		append(header, "Content-Type", "application/x-www-form-urlencoded")...)
}

func postJSON(h http.Handler, target, body string, header ...string) *httptest.ResponseRecorder {
	return send(h, http.MethodPost, target, strings.NewReader(body), append(header, "Content-Type", "application/json")...)
}

// element is one of a page.
type element struct {
	name   string
	attrs  map[string]string
	inside string // the text directly in it
}

// parseHTML reads the elements of a page in their order. It is stricter than a browser: what is not closed, and a
// character that has no place in a page, is an error.
func parseHTML(t *testing.T, body string) []*element {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(body))
	d.Strict, d.Entity, d.AutoClose = false, xml.HTMLEntity, append(xml.HTMLAutoClose, "wbr", "source")
	var all, open []*element
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			require.Empty(t, open, body)
			return all
		}
		require.NoError(t, err, body)
		switch tk := token.(type) {
		case xml.StartElement:
			e := &element{name: joined(tk.Name), attrs: make(map[string]string)}
			for _, a := range tk.Attr {
				e.attrs[joined(a.Name)] = a.Value
			}
			all, open = append(all, e), append(open, e)
		case xml.EndElement:
			open = open[:len(open)-1]
		case xml.CharData:
			if len(open) > 0 {
				open[len(open)-1].inside += string(tk)
			}
		case xml.Comment:
			t.Errorf("a comment: %s", tk)
		}
	}
}

// hiddenFields are those of a form whose elements begin here.
func hiddenFields(inside []*element) url.Values {
	fields := url.Values{}
	for _, e := range inside {
		if e.name == "form" {
			break
		}
		if e.name == "input" && e.attrs["type"] == "hidden" {
			fields.Add(e.attrs["name"], e.attrs["value"])
		}
	}
	return fields
}

// joined is a name as it is written, such as "hx-on:click".
func joined(n xml.Name) string {
	if n.Space == "" {
		return n.Local
	}
	return n.Space + ":" + n.Local
}

// allPages are addresses of every page, with what they need to show something.
func allPages() []string {
	return []string{
		"", "events", "events?status=DEAD&consumer=c", "event?id=e", "forensics", "forensics?key=k", "forensics?key=missing", "consumers",
		"dead", "jobs", "instances", "brokers", "reservations", "bulks", "bulk?id=b",
		"bulk-new?action=retry&consumer=c", "bulk-new?action=discard&status=DEAD", "publish", "audit", "audit?target=x", "doctor",
	}
}
