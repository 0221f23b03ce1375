package console

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"maps"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/bluecone-go/bluecone/ops"
	"github.com/bluecone-go/bluecone/outbox"
)

// newID names an operation before it is started.
func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// words are the functions of the templates, in one language.
type words struct {
	console *Console
	loc     locale
	text    catalog

	sentences map[string][]sentence // of findings
}

func (c *Console) funcs(loc locale) template.FuncMap {
	w := words{c, loc, c.texts[loc.lang], loadSentences(loc.lang)}
	return template.FuncMap{
		"t": w.t, "has": w.has, "link": w.link, "alter": w.alter, "asset": func(name string) string { return c.assets.url[name] },
		"asked": func() bool { return loc.asked },
		"num":   number, "count": capped, "rate": rate, "ago": w.ago, "moment": w.moment, "dur": w.duration, "badge": w.badge,
		"stateText": w.stateText, "icon": icon, "says": w.says, "tells": w.tells, "examined": w.examined, "prescribed": w.prescribed,
		"remedy": w.remedy,
		"tone":   tone, "spark": newSparkline, "dict": dict, "pretty": pretty, "short": short, "last": last,
		"whole": func(v float64) string { return number(int64(v)) }, "state": inState,
	}
}

func (w words) t(key string, namesAndValues ...any) string {
	texts := make([]string, len(namesAndValues))
	for i, v := range namesAndValues {
		texts[i] = fmt.Sprint(v)
	}
	return w.text.text(key, texts...)
}

func (w words) has(key string) bool { _, ok := w.text[key]; return ok }

// link is the relative address of a page with its parameters; empty ones are left out.
func (w words) link(page string, namesAndValues ...any) string {
	q := url.Values{}
	for i := 0; i+1 < len(namesAndValues); i += 2 {
		if v := fmt.Sprint(namesAndValues[i+1]); v != "" {
			q.Set(fmt.Sprint(namesAndValues[i]), v)
		}
	}
	return w.address(page, q)
}

// alter is a page's address with one parameter changed.
func (w words) alter(page string, q url.Values, name, value string) string {
	changed := url.Values{}
	maps.Copy(changed, q)
	for _, k := range []string{"done", "n", "passed", name} {
		changed.Del(k)
	}
	if value != "" {
		changed.Set(name, value)
	}
	return w.address(page, changed)
}

func (w words) address(page string, q url.Values) string {
	if page == "overview" || page == "error" {
		page = "./"
	}
	if w.loc.asked && q.Get("lang") == "" {
		q.Set("lang", w.loc.lang)
	}
	if len(q) == 0 {
		return page
	}
	return page + "?" + q.Encode()
}

// number groups digits: 12 345.
func number(n int64) string {
	s := strconv.FormatInt(n, 10)
	start := 0
	if n < 0 {
		start = 1
	}
	for i := len(s) - 3; i > start; i -= 3 {
		s = s[:i] + "\u202f" + s[i:]
	}
	return s
}

// capped is a count, with a plus if counting stopped.
func capped(c ops.Count) string {
	if c.More {
		return number(c.Count) + "+"
	}
	return number(c.Count)
}

func rate(perSecond float64) string {
	switch {
	case perSecond == 0:
		return "0"
	case perSecond < .05:
		return "< 0.1"
	case perSecond < 10:
		return strconv.FormatFloat(perSecond, 'f', 1, 64)
	}
	return number(int64(perSecond + .5))
}

// duration is a length of time with its two largest units.
func (w words) duration(d time.Duration) string {
	unit := func(name string, n int64) string { return w.text.text("time."+name, "n", strconv.FormatInt(n, 10)) }
	switch {
	case d < 0:
		return "−" + w.duration(-d)
	case d < time.Millisecond:
		return unit("us", d.Microseconds())
	case d < time.Second:
		return unit("ms", d.Milliseconds())
	case d < time.Minute:
		return unit("s", int64(d/time.Second))
	case d < 10*time.Minute && d%time.Minute >= time.Second:
		return unit("m", int64(d/time.Minute)) + " " + unit("s", int64(d%time.Minute/time.Second))
	case d < time.Hour:
		return unit("m", int64(d/time.Minute))
	case d < 24*time.Hour && d%time.Hour >= time.Minute:
		return unit("h", int64(d/time.Hour)) + " " + unit("m", int64(d%time.Hour/time.Minute))
	case d < 24*time.Hour:
		return unit("h", int64(d/time.Hour))
	}
	return unit("d", int64(d/(24*time.Hour)))
}

const absolute = "2006-01-02 15:04:05.000 UTC"

// ago is a time seen from now; the title says exactly when.
func (w words) ago(at time.Time) template.HTML {
	if at.IsZero() {
		return `<span class="muted">–</span>`
	}
	d := time.Since(at)
	text := w.text.text("time.ago", "d", w.duration(d.Truncate(time.Second)))
	switch {
	case d > -time.Second && d < time.Second:
		text = w.text["time.now"]
	case d < 0:
		text = w.text.text("time.in", "d", w.duration((-d).Truncate(time.Second)))
	}
	return timeElement(at, text)
}

// moment is a time to the millisecond.
func (w words) moment(at time.Time) template.HTML {
	return timeElement(at, at.UTC().Format("01-02 15:04:05.000"))
}

func timeElement(at time.Time, text string) template.HTML {
	element := `<time class="nowrap" datetime="` + at.UTC().Format(time.RFC3339Nano) + `" title="` + at.UTC().Format(absolute) + `">` +
		template.HTMLEscapeString(text) + `</time>`
	return template.HTML(element) //nolint:gosec // made of formatted times and an escaped text
}

func dict(namesAndValues ...any) (map[string]any, error) {
	if len(namesAndValues)%2 != 0 {
		return nil, errors.New("dict needs pairs")
	}
	m := make(map[string]any)
	for i := 0; i < len(namesAndValues); i += 2 {
		m[fmt.Sprint(namesAndValues[i])] = namesAndValues[i+1]
	}
	return m, nil
}

// pretty indents JSON; whatever is not JSON stays as it is. Numbers keep their digits.
func pretty(text string) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if json.Valid([]byte(text)) && enc.Encode(json.RawMessage(text)) == nil {
		return strings.TrimSuffix(b.String(), "\n")
	}
	return text
}

// short is the first line of a text, for a cell.
func short(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	if runes := []rune(line); len(runes) > 160 {
		return string(runes[:160]) + "…"
	}
	return line
}

// last is the newest value of a series.
func last(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	return values[len(values)-1]
}

// inState is the number of events in a state.
func inState(counts map[outbox.Status]ops.Count, state string) ops.Count {
	return counts[outbox.Status(state)]
}
