package console

import (
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/bluecone-go/bluecone/ops"
)

// attempts remembers which refused attempts have been written into the audit log: one of each principal and route a
// minute, so that nobody fills the log by being refused, nor keeps the attempts of others out of it.
type attempts struct {
	mu   sync.Mutex
	last map[string]map[string]time.Time // by principal and route
}

func newAttempts() *attempts { return &attempts{last: make(map[string]map[string]time.Time)} }

// isNew reports whether an attempt is to be written down.
func (a *attempts) isNew(principal, route string, now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	old := func(_ string, at time.Time) bool { return now.Sub(at) >= attemptEvery }
	if len(a.last) >= maxPrincipals {
		for name, routes := range a.last {
			if maps.DeleteFunc(routes, old); len(routes) == 0 {
				delete(a.last, name)
			}
		}
	}
	routes := a.last[principal]
	if routes == nil {
		routes = make(map[string]time.Time)
		a.last[principal] = routes
	}
	maps.DeleteFunc(routes, old)
	if _, known := routes[route]; known || len(routes) >= maxAttempts {
		return false
	}
	routes[route] = now
	return true
}

// noteAttempt writes into the audit log that somebody tried to change or reveal what they may not, at a route that exists.
func (c *Console) noteAttempt(r *http.Request, why error) {
	p := principalOf(r)
	route := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/api/v1"), "/")
	if r.Method != http.MethodPost || !c.attempts.isNew(p.Name, route, time.Now()) {
		return
	}
	op := ops.Operation{Actor: p.Name, Reason: why.Error()}
	if err := c.ops.Refused(r.Context(), op, route); err != nil {
		c.cfg.Logger.ErrorContext(r.Context(), "console: a refused attempt could not be written into the audit log", "actor", p.Name, "route",
			route, "error", err)
	}
}
