package console

import (
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/bluecone-go/bluecone/ops"
)

// attempts remembers which refused attempts have been written into the audit log: one of each principal and route a
// minute, so that nobody fills the log by being refused.
type attempts struct {
	mu   sync.Mutex
	last map[string]time.Time
}

func newAttempts() *attempts { return &attempts{last: make(map[string]time.Time)} }

// isNew reports whether an attempt is to be written down.
func (a *attempts) isNew(key string, now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for k, at := range a.last {
		if now.Sub(at) >= attemptEvery {
			delete(a.last, k)
		}
	}
	if _, known := a.last[key]; known || len(a.last) >= maxAttempts {
		return false
	}
	a.last[key] = now
	return true
}

// noteAttempt writes into the audit log that somebody tried to change or reveal what they may not.
func (c *Console) noteAttempt(r *http.Request, why error) {
	p := principalOf(r)
	route := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/api/v1"), "/")
	if r.Method != http.MethodPost || len(route) > maxOperationID || !c.attempts.isNew(p.Name+"\x00"+route, time.Now()) {
		return
	}
	op := ops.Operation{Actor: p.Name, Reason: why.Error()}
	if err := c.ops.Refused(r.Context(), op, route); err != nil {
		c.cfg.Logger.ErrorContext(r.Context(), "console: a refused attempt could not be written into the audit log", "actor", p.Name, "route",
			route, "error", err)
	}
}
