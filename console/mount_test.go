package console

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Under any prefix, stripped or not, every address in every page is relative and leads to a page.
func TestEveryLinkLeadsSomewhereUnderAnyPrefix(t *testing.T) {
	t.Parallel()
	type mounting struct{ name, base, want string }
	handlers := make(map[mounting]http.Handler)
	for _, prefix := range []string{"/", "/a/b/"} {
		c := consoleOf(&fake{text: "order/4 2.%中文", count: 3}, everything())
		mux := http.NewServeMux()
		mux.Handle(prefix, c)
		handlers[mounting{"as it is " + prefix, prefix, ""}] = mux
		stripped := http.NewServeMux()
		stripped.Handle(prefix, http.StripPrefix(strings.TrimSuffix(prefix, "/"), c))
		handlers[mounting{"stripped " + prefix, prefix, ""}] = stripped
		other := newConsole(&fake{text: "x", count: 3}, Config{Authorize: Anyone(everything()), Prefix: prefix, Logger: quiet()})
		handlers[mounting{"without a ServeMux " + prefix, prefix, ""}] = other
	}
	methods := http.NewServeMux()
	methods.Handle("GET example.com/m/{rest...}", consoleOf(&fake{text: "x", count: 3}, everything()))
	handlers[mounting{"pattern with method, host and wildcard", "/m/", ""}] = methods
	for m, h := range handlers {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			crawl(t, h, m.base)
		})
	}
}

// crawl follows every address, starting with the overview, and checks each.
func crawl(t *testing.T, h http.Handler, base string) {
	t.Helper()
	seen := map[string]bool{} // by path and the names of the parameters
	todo := []string{base, base + "event?id=e", base + "forensics?key=k", base + "bulk-new?action=retry&consumer=c"}
	for len(todo) > 0 {
		at := todo[0]
		todo = todo[1:]
		kind := kindOf(t, at)
		if seen[kind] {
			continue
		}
		seen[kind] = true
		w := get(h, at)
		require.Equal(t, http.StatusOK, w.Code, at)
		if !strings.Contains(w.Header().Get("Content-Type"), "html") {
			continue
		}
		from, err := url.Parse("http://example.com" + at)
		require.NoError(t, err)
		all := parseHTML(t, w.Body.String())
		for i, n := range all {
			for _, name := range []string{"href", "src", "action", "hx-get"} {
				to, ok := n.attrs[name]
				if !ok || strings.HasPrefix(to, "https://traces.example/") || strings.HasPrefix(to, "#") {
					continue
				}
				u, err := url.Parse(to)
				require.NoError(t, err, to)
				require.True(t, !u.IsAbs() && u.Host == "" && !strings.HasPrefix(u.Path, "/") && !strings.Contains(to, ".."), "%s links to %q", at, to)
				next := from.ResolveReference(u)
				require.True(t, strings.HasPrefix(next.Path, base), "%s leads out: %s", at, to)
				if name == "action" && n.attrs["method"] == "get" {
					next.RawQuery = hiddenFields(all[i+1:]).Encode()
				}
				if name != "action" || n.attrs["method"] != "post" {
					todo = append(todo, next.RequestURI())
				}
			}
		}
	}
	require.Greater(t, len(seen), 20)
}

// kindOf is an address without the values of its parameters.
func kindOf(t *testing.T, at string) string {
	t.Helper()
	u, err := url.Parse(at)
	require.NoError(t, err)
	return u.Path + "?" + strings.Join(slices.Sorted(maps.Keys(u.Query())), "&")
}

// The prefix without its slash leads to the one with it, wherever the console is.
func TestPrefixWithoutSlash(t *testing.T) {
	t.Parallel()
	c := consoleOf(&fake{text: "x"}, everything())
	for name, h := range map[string]http.Handler{
		"as it is": newConsole(&fake{}, Config{Authorize: Anyone(everything()), Prefix: "/a/ops/", Logger: quiet()}),
		"stripped": http.StripPrefix("/a/ops", c),
	} {
		w := get(h, "/a/ops")
		require.Equal(t, http.StatusMovedPermanently, w.Code, name)
		to, err := url.Parse("http://example.com/a/ops")
		require.NoError(t, err)
		to, err = to.Parse(w.Header().Get("Location"))
		require.NoError(t, err)
		require.Equal(t, "/a/ops/", to.Path, name)
	}
}

// Only plain paths are known: what could be read in two ways is nobody's.
func TestOddPathsAreNobodys(t *testing.T) {
	t.Parallel()
	f := &fake{text: "x"}
	mux := http.NewServeMux()
	mux.Handle("/console/", consoleOf(f, everything()))
	for _, path := range []string{
		"/console//events", "/console/events/", "/console/%65vents", "/console/events%2f", "/console/./events", "/console/x/../events",
		"/console/%2e%2e/events", "/console/retry%00", "/console/assets/", "/console/assets/x", "/console/api/v1/", "/console/api",
	} {
		for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodHead} {
			for _, h := range []http.Handler{mux, http.StripPrefix("/console", consoleOf(f, everything()))} {
				w := send(h, method, path, strings.NewReader("id=1&reason=x"), "Content-Type", "application/x-www-form-urlencoded")
				require.NotEqual(t, http.StatusOK, w.Code, method+" "+path)
				require.NotEqual(t, http.StatusSeeOther, w.Code, method+" "+path)
			}
		}
	}
	require.Empty(t, f.done())
	for _, method := range []string{http.MethodPut, http.MethodDelete, http.MethodPatch, http.MethodOptions} {
		require.Equal(t, http.StatusMethodNotAllowed, send(mux, method, "/console/events", nil).Code, method)
		require.Equal(t, http.StatusMethodNotAllowed, send(mux, method, "/console/retry", nil).Code, method)
	}
	require.Equal(t, http.StatusMethodNotAllowed, send(mux, http.MethodGet, "/console/retry", nil).Code)
}

// Names survive the way into an address and back.
func TestNamesRoundTripThroughAddresses(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a/b", ".", "..", "100%", "%2f", "a b", "订单/中文", "a+b&c=d#e?f", `"quoted"`, "\u202ertl"} {
		f := &fake{text: name}
		c := consoleOf(f, everything())
		w := get(c, "/events")
		require.Equal(t, http.StatusOK, w.Code)
		var found bool
		for _, n := range parseHTML(t, w.Body.String()) {
			if to, ok := n.attrs["href"]; ok && strings.HasPrefix(to, "event?") {
				require.Equal(t, http.StatusOK, get(c, "/"+to).Code, to)
				found = true
			}
		}
		require.True(t, found)
		require.Contains(t, f.done(), "event "+name)
	}
}

func TestPrefixOfARouterThatIsNoServeMux(t *testing.T) {
	t.Parallel()
	c := newConsole(&fake{text: "x"}, Config{Authorize: Anyone(everything()), Prefix: "/x/console", Logger: quiet()})
	r := httptest.NewRequest(http.MethodGet, "/x/console/events", nil)
	w := httptest.NewRecorder()
	c.ServeHTTP(w, r)
	require.Equal(t, http.StatusOK, w.Code)
}
