package console

import (
	"bytes"
	"embed"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
)

//go:embed templates
var templateFiles embed.FS

// view is everything a template is given.
type view struct {
	Page        string // name of the page
	Me          Principal
	ReadOnly    bool
	Service     string
	Environment string
	Production  bool
	Lang        string
	Query       url.Values // of this request
	Done        string     // sentence about what was just done
	Self        string     // relative address of this page with its query
	Op          string     // id of the operation that a form on this page would start
	Data        any
}

// Can reports whether the page may offer an action.
func (v view) Can(perm Permission) bool {
	if len(v.Me.Tenants) > 0 && slices.Contains([]Permission{Pause, Retire, RunJob}, perm) {
		return false // these concern all tenants
	}
	return !v.ReadOnly && v.Me.Can(perm)
}

// CanSee reports whether the visitor has a permission that changes nothing.
func (v view) CanSee(perm Permission) bool { return v.Me.Can(perm) }

func (c *Console) viewOf(r *http.Request, page string, data any) view {
	loc := localeOf(r)
	q := r.URL.Query()
	v := view{
		Page: page, Me: principalOf(r), ReadOnly: c.cfg.ReadOnly, Service: c.cfg.Title, Environment: c.cfg.Environment,
		Production: c.cfg.Production,
		Lang:       loc.lang, Query: q, Op: newID(), Data: data,
	}
	if done := q.Get("done"); done != "" {
		v.Done = c.texts[loc.lang].done(done, q.Get("n"), q.Get("passed"))
	}
	keep := url.Values{}
	for k, vs := range q {
		if k != "done" && k != "n" && k != "passed" {
			keep[k] = vs
		}
	}
	name := strings.TrimPrefix(r.URL.Path, "/")
	if name == "" {
		name = "./"
	}
	v.Self = name
	if len(keep) > 0 {
		v.Self += "?" + keep.Encode()
	}
	return v
}

// done is the sentence about an action that was done, for known actions and plain numbers only.
func (c catalog) done(action, n, passed string) string {
	s, ok := c["done."+action]
	if !ok {
		return ""
	}
	if nothing, ok := c["done."+action+".none"]; ok && n == "0" {
		s = nothing
	}
	s = strings.ReplaceAll(s, "{n}", digits(n))
	if p := digits(passed); p != "0" {
		s += " " + strings.ReplaceAll(c["done.passed"], "{n}", p)
	}
	return s
}

func digits(s string) string {
	if s == "" || len(s) > 9 || strings.Trim(s, "0123456789") != "" {
		return "0"
	}
	return s
}

// parse makes the pages in every language, each language when it is first asked for. A template that
// does not parse is found by the first test.
func (c *Console) parse() map[locale]func() map[string]*template.Template {
	views := make(map[locale]func() map[string]*template.Template)
	for _, lang := range languages() {
		for _, asked := range []bool{false, true} {
			loc := locale{lang, asked}
			views[loc] = sync.OnceValue(func() map[string]*template.Template { return c.parseIn(loc) })
		}
	}
	return views
}

func (c *Console) parseIn(loc locale) map[string]*template.Template {
	pages := make(map[string]*template.Template)
	base := template.Must(template.New("layout.html").Funcs(c.funcs(loc)).ParseFS(templateFiles, "templates/layout.html",
		"templates/parts.html"))
	for _, p := range append(c.pages(), page{name: "error"}) {
		pages[p.name] = template.Must(template.Must(base.Clone()).ParseFS(templateFiles, "templates/"+p.name+".html"))
	}
	return pages
}

// render writes a page, or only its live part if htmx asks.
func (c *Console) render(w http.ResponseWriter, r *http.Request, status int, v view) {
	name := "layout.html"
	if r.Header.Get("HX-Request") == "true" && status == http.StatusOK {
		name = "live"
	}
	var body bytes.Buffer
	if err := c.views[localeOf(r)]()[v.Page].ExecuteTemplate(&body, name, v); err != nil {
		c.cfg.Logger.ErrorContext(r.Context(), "console: a page cannot be shown", "page", v.Page, "error", err)
		http.Error(w, fmt.Sprintf("the page %s cannot be shown; the log says why", v.Page), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Vary", "HX-Request, Accept-Language")
	w.WriteHeader(status)
	_, _ = w.Write(body.Bytes()) // a browser that went away needs no answer
}
