package web

import (
	"net/http"
	"strings"
	"time"

	"github.com/bluecone-go/bluecone/demo/httpserver"
)

// guarded refuses what pages of other sites change, and what a browser changes without a session. Programs need neither.
// Nobody holds a request for long by sending its body slowly.
func guarded(conf Config, next http.Handler) http.Handler {
	sameOrigin := http.NewCrossOriginProtection()
	return httpserver.KnownHost(conf.Hosts, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := sameOrigin.Check(r); err != nil {
			httpserver.Fail(w, http.StatusForbidden, "this request comes from another site", "CROSS_SITE")
			return
		}
		if changes(r) && isBrowser(r) && (conf.Session == nil || !conf.Session(r)) {
			httpserver.Fail(w, http.StatusForbidden,
				"a browser needs a session: open the link of the console that this process has printed at its start", "NO_SESSION")
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
