package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/bluecone-go/bluecone/internal/crowd"
	"github.com/bluecone-go/bluecone/ops"
)

// policy lets a page load nothing but the console's own files, and be framed by nobody.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; " +
	"frame-ancestors 'none'; base-uri 'none'"

func secure(h http.Header) {
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "same-origin") // not no-referrer: then browsers send "Origin: null" with the console's own forms
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Permissions-Policy", "camera=(), display-capture=(), geolocation=(), microphone=(), payment=(), usb=()")
	h.Set("Cache-Control", "no-store") // assets say otherwise
	h.Set("X-Robots-Tag", "noindex")
}

// visitor is who sent a request.
type visitor struct{}

func principalOf(r *http.Request) Principal {
	p, _ := r.Context().Value(visitor{}).(Principal)
	return p
}

// ServeHTTP lets in who may come in.
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	secure(w.Header())
	r = c.bounded(w, r)
	p, ok := c.admit(w, r)
	if !ok {
		return
	}
	inside, ok := c.inside(r)
	if !ok {
		http.NotFound(w, r)
		return
	}
	if inside == "" { // the prefix without its slash: relative addresses need it
		w.Header().Set("Location", "./"+path.Base(originalPath(r))+"/")
		w.WriteHeader(http.StatusMovedPermanently)
		return
	}
	ctx := ops.WithCaller(context.WithValue(r.Context(), visitor{}, p), ops.Caller{Name: p.Name, Tenants: p.Tenants})
	r2 := r.WithContext(ctx)
	u := *r.URL
	u.Path, u.RawPath = inside, ""
	r2.URL = &u
	leave, err := c.enter(p.Name, time.Now())
	if err != nil {
		w.Header().Set("Retry-After", retryAfter)
		c.fail(w, r2, err)
		return
	}
	defer leave()
	// Before anybody is refused: only attempts at routes that exist are written down.
	if _, pattern := c.mux.Handler(r2); pattern == "" {
		c.fail(w, r2, c.noRoute(w, r2))
		return
	}
	if err := c.cross.Check(r2); err != nil {
		c.fail(w, r2, &refusal{http.StatusForbidden, "error.cross", err})
		return
	}
	c.mux.ServeHTTP(w, r2)
}

// enter lets a request of a principal in, unless there are too many: under way, which is the answer 503, or within a time, which is
// 429. Whoever is let in calls leave afterwards.
func (c *Console) enter(name string, now time.Time) (leave func(), err error) {
	leave, tooMany := c.crowd.Enter(name, crowd.Limits{PerSecond: maxRate, Burst: maxBurst, UnderWay: maxUnderWay}, now)
	switch {
	case tooMany == nil:
		return leave, nil
	case tooMany.UnderWay:
		err := fmt.Errorf("too many requests of %s under way: %w", name, ops.ErrTooManyReaders)
		return nil, &refusal{http.StatusServiceUnavailable, "error.crowd", err}
	default:
		return nil, &refusal{http.StatusTooManyRequests, "error.crowd", fmt.Errorf("too many requests of %s: ask again in a moment", name)}
	}
}

// admit tells who sent a request, or answers it if they may not come in.
func (c *Console) admit(w http.ResponseWriter, r *http.Request) (Principal, bool) {
	p, err := c.who(r)
	if ask, ok := errors.AsType[*ChallengeError](err); ok {
		w.Header().Set("WWW-Authenticate", ask.Header)
		http.Error(w, http.StatusText(http.StatusUnauthorized), http.StatusUnauthorized)
		return Principal{}, false
	}
	if errors.Is(err, ErrTooManyPasswords) {
		w.Header().Set("Retry-After", retryLogin)
		http.Error(w, http.StatusText(http.StatusTooManyRequests), http.StatusTooManyRequests)
		return Principal{}, false
	}
	if err != nil || !p.Can(View) {
		http.NotFound(w, r)
		return Principal{}, false
	}
	return p, true
}

// bounded limits how much of a body is read, and for how long, before anybody reads any of it: an [Authorizer], too.
func (c *Console) bounded(w http.ResponseWriter, r *http.Request) *http.Request {
	if r.Body == nil || r.Body == http.NoBody {
		return r
	}
	r = r.WithContext(r.Context())
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	// Where a deadline cannot be set, as under HTTP/2 or in a test, the server's own timeouts have to do.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(c.bodyTime))
	return r
}

// hasBody says that the body has arrived: what is done with it may take its time.
func hasBody(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
}

// noRoute says why nothing answers: no such page, or not in this way.
func (c *Console) noRoute(w http.ResponseWriter, r *http.Request) *refusal {
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		r2 := r.WithContext(r.Context())
		r2.Method = method
		if _, pattern := c.mux.Handler(r2); pattern != "" {
			w.Header().Set("Allow", method)
			return &refusal{http.StatusMethodNotAllowed, "error.method", errors.New("this address takes " + method + " only")}
		}
	}
	return &refusal{http.StatusNotFound, "error.nopage", errors.New("there is no such page")}
}

func (c *Console) who(r *http.Request) (Principal, error) {
	if c.cfg.Authorize == nil {
		return Principal{}, ErrNobody
	}
	return c.cfg.Authorize(r)
}

// inside is the path below the prefix; "" is the prefix without its slash. Only plain paths are known:
// whatever is escaped, doubled or climbs is nobody's, so that no two readings of a path exist.
func (c *Console) inside(r *http.Request) (string, bool) {
	p := strings.TrimPrefix(r.URL.EscapedPath(), strings.TrimSuffix(c.prefix(r), "/"))
	if p == "" {
		return "", true
	}
	if strings.Contains(p, "%") || !strings.HasPrefix(p, "/") || (p != "/" && path.Clean(p) != p) {
		return "", false
	}
	return p, true
}

// prefix is what comes before the console's own paths in the path of this request: nothing, if somebody
// stripped it, else what the console was told or the pattern of the http.ServeMux that sent it here.
func (c *Console) prefix(r *http.Request) string {
	if c.cfg.Prefix != "" && strings.HasPrefix(r.URL.EscapedPath(), strings.TrimSuffix(c.cfg.Prefix, "/")) {
		return c.cfg.Prefix
	}
	if r.URL.EscapedPath() != originalPath(r) {
		return ""
	}
	_, pattern, found := strings.Cut(r.Pattern, "/") // the pattern may begin with a method and a host
	if !found {
		return ""
	}
	pattern, _, _ = strings.Cut(pattern, "{") // and end with a wildcard
	return "/" + pattern
}

// originalPath is the path as the client sent it, whatever was stripped since.
func originalPath(r *http.Request) string {
	if u, err := url.ParseRequestURI(r.RequestURI); err == nil {
		return u.EscapedPath()
	}
	return r.URL.EscapedPath()
}

// handle registers a route. There is no other way in, and none without a permission.
func (c *Console) handle(pattern string, needs Permission, h func(w http.ResponseWriter, r *http.Request) error) {
	c.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		if !principalOf(r).Can(needs) {
			c.fail(w, r, forbidden(needs))
			return
		}
		if err := h(w, r); err != nil {
			c.fail(w, r, err)
		}
	})
}

// routes registers everything there is.
func (c *Console) routes() {
	c.mux.Handle("GET /assets/{name}", c.assets)
	for _, p := range c.pages() {
		if c.cfg.ReadOnly && p.plans {
			continue
		}
		c.handle("GET /"+strings.Replace(p.name, "overview", "{$}", 1), p.needs, c.showPage(p))
		c.handle("GET /api/v1/"+p.name, p.needs, c.answerPage(p))
	}
	if c.cfg.ReadOnly {
		return
	}
	for _, a := range c.actions() {
		c.handle("POST /"+a.name, a.needs, c.doForm(a))
		c.handle("POST /api/v1/"+a.name, a.needs, c.doAPI(a))
	}
}
