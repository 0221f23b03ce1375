package web

import (
	"net"
	"net/http"
	"slices"
	"strings"
	"time"
)

// KnownHost refuses requests for a name that is not localhost, an IP address or one of names. A page whose name somebody
// has pointed at this machine is the same site for a browser, and could read everything.
func KnownHost(names []string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := hostOf(r.Host)
		named := func(name string) bool { return strings.EqualFold(name, host) }
		if net.ParseIP(host) == nil && !named("localhost") && !slices.ContainsFunc(names, named) {
			answer(w, http.StatusMisdirectedRequest, failure{
				"this instance is not known by that name: call it localhost or by its IP address, or start it with --host NAME", "WRONG_HOST",
			})
			return
		}
		next.ServeHTTP(w, r)
	})
}

// hostOf is the host of a Host header, without port and brackets.
func hostOf(hostport string) string {
	if host, _, err := net.SplitHostPort(hostport); err == nil {
		return host
	}
	return strings.TrimSuffix(strings.TrimPrefix(hostport, "["), "]")
}

// guarded refuses what pages of other sites change, and what a browser changes without a session. Programs need neither.
// Nobody holds a request for long by sending its body slowly.
func guarded(conf Config, next http.Handler) http.Handler {
	sameOrigin := http.NewCrossOriginProtection()
	return KnownHost(conf.Hosts, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := sameOrigin.Check(r); err != nil {
			answer(w, http.StatusForbidden, failure{"this request comes from another site", "CROSS_SITE"})
			return
		}
		if changes(r) && isBrowser(r) && (conf.Session == nil || !conf.Session(r)) {
			answer(w, http.StatusForbidden, failure{
				"a browser needs a session: open the link of the console that this process has printed at its start", "NO_SESSION",
			})
			return
		}
		if r.Body != nil && r.Body != http.NoBody {
			// Where a deadline cannot be set, as in a test, nobody is slow.
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(conf.bodyTime))
		}
		next.ServeHTTP(w, r)
	}))
}

func changes(r *http.Request) bool {
	return r.Method != http.MethodGet && r.Method != http.MethodHead && r.Method != http.MethodOptions
}

// isBrowser reports whether a page has sent a request that changes something. Browsers say Sec-Fetch-Site to this machine
// and over TLS, and Origin always. A program may say Origin, too; only browsers are "Mozilla" beside that.
func isBrowser(r *http.Request) bool {
	return r.Header.Get("Sec-Fetch-Site") != "" || r.Header.Get("Origin") != "" && strings.HasPrefix(r.UserAgent(), "Mozilla/")
}
