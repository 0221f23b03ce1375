package console

import (
	"embed"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
)

//go:embed catalog
var catalogFiles embed.FS

// languages are those that there is a catalog of; the first is the default.
func languages() []string { return []string{"en", "zh"} }

// locale is the language of an answer, and whether it was asked for in the address: then every
// link carries it on, so that no cookie is needed.
type locale struct {
	lang  string
	asked bool
}

// catalog maps keys to sentences.
type catalog map[string]string

func loadCatalogs() map[string]catalog {
	all := make(map[string]catalog)
	for _, lang := range languages() {
		content, err := catalogFiles.ReadFile("catalog/" + lang + ".json")
		if err != nil {
			panic(err) // embedded: it is there or the program does not build
		}
		var c catalog
		if err := json.Unmarshal(content, &c); err != nil {
			panic("console: catalog " + lang + ": " + err.Error())
		}
		all[lang] = c
	}
	return all
}

// text is a sentence with values in the place of their names in braces. A key that is missing is shown.
func (c catalog) text(key string, namesAndValues ...string) string {
	s, ok := c[key]
	if !ok {
		return key
	}
	for i := 0; i+1 < len(namesAndValues); i += 2 {
		s = strings.ReplaceAll(s, "{"+namesAndValues[i]+"}", namesAndValues[i+1])
	}
	return s
}

// localeOf chooses the language: the address, else the first that the browser knows and we do too.
func localeOf(r *http.Request) locale {
	// A form says it too, if it has been read by now. It is not read for this: most of those who get an error may not send one.
	for _, lang := range []string{r.PostForm.Get("lang"), r.URL.Query().Get("lang")} {
		if slices.Contains(languages(), lang) {
			return locale{lang, true}
		}
	}
	for part := range strings.SplitSeq(r.Header.Get("Accept-Language"), ",") {
		tag, _, _ := strings.Cut(part, ";")
		primary, _, _ := strings.Cut(strings.TrimSpace(tag), "-")
		if lang := strings.ToLower(primary); slices.Contains(languages(), lang) {
			return locale{lang, false}
		}
	}
	return locale{languages()[0], false}
}
