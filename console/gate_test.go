package console

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/ops"
)

// everyMutation is a valid request for every route that changes something or reveals a payload.
func everyMutation() map[string]url.Values {
	fields := func(more ...string) url.Values {
		v := url.Values{"reason": {"because"}}
		for i := 0; i+1 < len(more); i += 2 {
			v.Set(more[i], more[i+1])
		}
		return v
	}
	one := func(more ...string) url.Values { return fields(append(more, "id", "e1")...) }
	return map[string]url.Values{
		"retry": one("consumer", "c"), "reopen": one("consumer", "c"), "skip": one("consumer", "c", "confirm", "1"),
		"discard": one("confirm", "1"), "replay": one("consumer", "c", "confirm", "1"),
		"pause": fields("consumer", "c", "minutes", "5"), "resume": fields("consumer", "c"), "retire": fields("consumer", "c"),
		"run-job": fields("code", "j"), "publish": fields("eventType", "t", "payload", "{}"),
		"publish-check": fields("eventType", "t", "payload", "{}"), "payload": one(),
		"bulk": fields("consumer", "c", "action", "retry", "confirm", "3"), "bulk-cancel": one(), "bulk-resume": one(),
	}
}

func asJSON(form url.Values) string {
	fields := make(map[string]any)
	for k, v := range form {
		fields[k] = v
	}
	b, err := json.Marshal(fields)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// Every changing route, in both forms, for every role: who may not, changes nothing.
func TestEveryMutatingRouteAsksForItsPermission(t *testing.T) {
	t.Parallel()
	operator := map[string]bool{"retry": true, "pause": true, "resume": true, "run-job": true}
	roles := map[string]struct {
		p   Principal
		may func(route string) bool
	}{
		"anonymous": {Principal{}, func(string) bool { return false }},
		"stranger":  {Principal{Name: "eve"}, func(string) bool { return false }},
		"read-only": {Principal{Name: "rita", May: ReadOnly()}, func(string) bool { return false }},
		"operator":  {Principal{Name: "olaf", May: Operator()}, func(route string) bool { return operator[route] }},
		"admin":     {Principal{Name: "anna", May: Admin()}, func(route string) bool { return route != "payload" }},
		"auditor":   {Principal{Name: "audi", May: append(ReadOnly(), PayloadView)}, func(route string) bool { return route == "payload" }},
	}
	routes := everyMutation()
	for _, a := range consoleOf(&fake{}, everything()).actions() {
		require.Contains(t, routes, a.name, "this test does not know the route")
	}
	for name, role := range roles {
		for route, form := range routes {
			t.Run(name+"/"+route, func(t *testing.T) {
				t.Parallel()
				for form2, call := range map[string]func(h http.Handler) int{
					"form": func(h http.Handler) int { return post(h, "/"+route, form).Code },
					"api":  func(h http.Handler) int { return postJSON(h, "/api/v1/"+route, asJSON(form)).Code },
				} {
					f := &fake{text: "x", count: 3}
					code := call(consoleOf(f, role.p))
					switch {
					case name == "anonymous" || name == "stranger":
						require.Equal(t, http.StatusNotFound, code, form2)
						require.Empty(t, f.done())
					case !role.may(route):
						require.Equal(t, http.StatusForbidden, code, form2)
						require.Empty(t, f.done())
					default:
						require.Contains(t, []int{http.StatusOK, http.StatusSeeOther}, code, form2)
						require.NotEmpty(t, f.done())
					}
				}
			})
		}
	}
}

// A bulk operation needs the permission for what it does as well.
func TestBulkNeedsTheActionsPermissionToo(t *testing.T) {
	t.Parallel()
	f := &fake{text: "x", count: 3}
	c := consoleOf(f, Principal{Name: "olaf", May: append(Operator(), Bulk)})
	form := url.Values{"action": {"discard"}, "status": {"DEAD"}, "reason": {"r"}, "confirm": {"3"}}
	require.Equal(t, http.StatusForbidden, post(c, "/bulk", form).Code)
	form.Set("action", "retry")
	require.Equal(t, http.StatusSeeOther, post(c, "/bulk", form).Code)
}

// ReadOnly leaves the routes out, for whomever.
func TestReadOnlyHasNoMutatingRoutes(t *testing.T) {
	t.Parallel()
	f := &fake{text: "x", count: 3}
	c := newConsole(f, Config{Authorize: Anyone(everything()), ReadOnly: true, Logger: quiet()})
	for route, form := range everyMutation() {
		if route == "bulk" { // a page of that name exists, to look at
			require.Equal(t, http.StatusMethodNotAllowed, post(c, "/"+route, form).Code, route)
			continue
		}
		require.Equal(t, http.StatusNotFound, post(c, "/"+route, form).Code, route)
		require.Equal(t, http.StatusNotFound, postJSON(c, "/api/v1/"+route, asJSON(form)).Code, route)
	}
	require.Empty(t, f.done())
	for _, page := range allPages() {
		require.False(t, strings.Contains(get(c, "/"+page).Body.String(), `method="post"`), page)
	}
}

// Nobody gets in until an authorizer says who they are.
func TestClosedWithoutAuthorizer(t *testing.T) {
	t.Parallel()
	c := newConsole(&fake{text: "x"}, Config{Logger: quiet()})
	for _, path := range append(allPages(), "api/v1/overview", c.assets.url["console.css"]) {
		w := get(c, "/"+path)
		require.Equal(t, http.StatusNotFound, w.Code, path)
		require.NotContains(t, w.Body.String(), "bluecone")
	}
}

func TestRequestsOfOtherSitesChangeNothing(t *testing.T) {
	t.Parallel()
	for route, form := range everyMutation() {
		for _, header := range [][]string{
			{"Sec-Fetch-Site", "cross-site"},
			{"Sec-Fetch-Site", "same-site"},
			{"Origin", "https://evil.example"},
			{"Origin", "null"},
		} {
			f := &fake{text: "x", count: 3}
			c := consoleOf(f, everything())
			require.Equal(t, http.StatusForbidden, post(c, "/"+route, form, header...).Code, "%s %v", route, header)
			require.Equal(t, http.StatusForbidden, postJSON(c, "/api/v1/"+route, asJSON(form), header...).Code)
			require.Empty(t, f.done())
		}
		f := &fake{text: "x", count: 3}
		require.NotEqual(t, http.StatusForbidden,
			post(consoleOf(f, everything()), "/"+route, form, "Sec-Fetch-Site", "same-origin", "Origin", "http://example.com").Code)
	}
	// a form of another site cannot send JSON, and ours takes nothing else
	require.Equal(t, http.StatusUnsupportedMediaType,
		send(consoleOf(&fake{}, everything()), http.MethodPost, "/api/v1/retry", strings.NewReader(`{"id":"1","reason":"x"}`), "Content-Type",
			"text/plain").Code)
}

func TestHeaders(t *testing.T) {
	t.Parallel()
	c := consoleOf(&fake{text: "x", count: 1}, everything())
	for _, path := range append(allPages(), "nothing", "api/v1/overview") {
		h := get(c, "/"+path).Header()
		require.Equal(t, "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action "+
			"'self'; frame-ancestors 'none'; base-uri 'none'", h.Get("Content-Security-Policy"), path)
		require.Equal(t, "nosniff", h.Get("X-Content-Type-Options"))
		require.Equal(t, "same-origin", h.Get("Referrer-Policy"))
		require.Equal(t, "same-origin", h.Get("Cross-Origin-Opener-Policy"))
		require.Equal(t, "same-origin", h.Get("Cross-Origin-Resource-Policy"))
		require.Contains(t, h.Get("Permissions-Policy"), "camera=()")
		require.Equal(t, "no-store", h.Get("Cache-Control"))
		require.Equal(t, "noindex", h.Get("X-Robots-Tag"))
		require.Empty(t, h.Values("Set-Cookie"))
	}
	asset := get(c, "/"+c.assets.url["console.css"])
	require.Equal(t, http.StatusOK, asset.Code)
	require.Equal(t, "private, max-age=31536000, immutable", asset.Header().Get("Cache-Control"))
	require.Contains(t, asset.Header().Get("Content-Type"), "text/css")
}

func TestBearerToken(t *testing.T) {
	t.Parallel()
	_, err := BearerToken("short", everything())
	require.ErrorContains(t, err, "at least 32")
	token := strings.Repeat("k", 32)
	auth, err := BearerToken(token, everything())
	require.NoError(t, err)
	for header, ok := range map[string]bool{
		"Bearer " + token: true, "bearer " + token: true, "Basic " + token: false,
		"Bearer " + token + "x": false, "Bearer": false, "": false, token: false,
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("Authorization", header)
		p, err := auth(r)
		require.Equal(t, ok, err == nil, header)
		require.Equal(t, ok, p.Can(View))
	}
}

func TestLocalOnly(t *testing.T) {
	t.Parallel()
	auth := LocalOnly(Anyone(everything()))
	for _, c := range []struct {
		remote, host string
		ok           bool
	}{
		{"127.0.0.1:1", "localhost:8080", true},
		{"127.0.0.1:1", "127.0.0.1:8080", true},
		{"[::1]:1", "[::1]:8080", true},
		{"127.0.0.1:1", "localhost", true},
		{"127.0.0.1:1", "evil.example:8080", false},
		{"10.0.0.1:1", "localhost:8080", false},
		{"10.0.0.1:1", "127.0.0.1", false},
		{"", "localhost", false},
		{"127.0.0.1:1", "", false},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.RemoteAddr, r.Host = c.remote, c.host
		r.Header.Set("X-Forwarded-For", "127.0.0.1")
		_, err := auth(r)
		require.Equal(t, c.ok, err == nil, "%+v", c)
	}
}

// A console without operations is refused.
func TestNewNeedsOps(t *testing.T) {
	t.Parallel()
	_, err := New(nil, Config{})
	require.EqualError(t, err, "console.New: ops is nil: give it what o, err := ops.New(db, ob, ops.Config{}) returned")
}

// Who is refused is written down, once a minute for each route, and nothing is written for those whom nobody knows.
func TestRefusedAttemptsAreAudited(t *testing.T) {
	t.Parallel()
	f := &fake{text: "x"}
	c := consoleOf(f, Principal{Name: "rita", May: ReadOnly()})
	for range 5 {
		require.Equal(t, http.StatusForbidden, post(c, "/discard", everyMutation()["discard"]).Code)
		require.Equal(t, http.StatusForbidden, postJSON(c, "/api/v1/discard", asJSON(everyMutation()["discard"])).Code)
	}
	require.Equal(t, http.StatusForbidden, post(c, "/payload", everyMutation()["payload"]).Code)
	require.Equal(t, http.StatusForbidden, post(c, "/retry", everyMutation()["retry"], "Sec-Fetch-Site", "cross-site").Code)
	require.Equal(t, []string{"rita discard", "rita payload", "rita retry"}, f.refused)
	post(consoleOf(f, Principal{}), "/discard", everyMutation()["discard"])
	require.Len(t, f.refused, 3)
	now := time.Now()
	a := newAttempts()
	for i := range 2 * maxAttempts {
		require.Equal(t, i < maxAttempts, a.isNew("rita", strconv.Itoa(i), now))
	}
	require.True(t, a.isNew("olaf", "0", now), "others have a number of their own")
	require.True(t, a.isNew("rita", "0", now.Add(attemptEvery)))
	for i := range 2 * maxPrincipals {
		require.True(t, a.isNew("visitor "+strconv.Itoa(i), "retry", now.Add(time.Duration(i)*attemptEvery)))
		require.LessOrEqual(t, len(a.last), maxPrincipals)
	}
}

// Nobody uses up the audit of refusals at addresses that do not exist, and none of these is written down.
func TestAttemptsAtNoRouteAreNotAudited(t *testing.T) {
	t.Parallel()
	f := &fake{text: "x"}
	c := consoleOf(f, Principal{Name: "rita", May: ReadOnly()})
	for i := range 2 * maxAttempts {
		w := post(c, "/a"+strconv.Itoa(i), nil, "Origin", "https://evil.example")
		require.Equal(t, http.StatusNotFound, w.Code)
	}
	require.Equal(t, http.StatusMethodNotAllowed, post(c, "/events", nil, "Origin", "https://evil.example").Code)
	require.Empty(t, f.refused)
	require.Equal(t, http.StatusForbidden, post(c, "/discard", everyMutation()["discard"]).Code)
	require.Equal(t, []string{"rita discard"}, f.refused)
}

// One principal gets no more than their share.
func TestEachPrincipalIsLimited(t *testing.T) {
	t.Parallel()
	h := consoleOf(&fake{text: "x"}, everything())
	for now := time.Now().Add(time.Hour); ; { // nothing is left until then
		leave, err := h.enter("anna", now)
		if err != nil {
			break
		}
		leave()
	}
	w := get(h, "/nothing")
	require.Equal(t, http.StatusTooManyRequests, w.Code)
	require.Equal(t, retryAfter, w.Header().Get("Retry-After"))

	h = consoleOf(&fake{text: "x"}, everything())
	for range maxUnderWay {
		_, err := h.enter("anna", time.Now())
		require.NoError(t, err)
	}
	for _, path := range []string{"/events", "/api/v1/events"} {
		w = get(h, path)
		require.Equal(t, http.StatusServiceUnavailable, w.Code)
		require.Equal(t, retryAfter, w.Header().Get("Retry-After"))
	}
}

// A console that is too busy says when to ask again.
func TestABusyConsoleSaysWhenToAskAgain(t *testing.T) {
	t.Parallel()
	w := get(consoleOf(&fake{text: "x", fails: ops.ErrTooManyReaders}, everything()), "/api/v1/events")
	require.Equal(t, http.StatusServiceUnavailable, w.Code)
	require.Equal(t, retryAfter, w.Header().Get("Retry-After"))
	require.Equal(t, http.StatusForbidden, get(consoleOf(&fake{text: "x", fails: ops.ErrForbidden}, everything()), "/jobs").Code)
}
