package ops

import (
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"strings"
)

// hidden stands for a value that is personal.
const hidden = `"(hidden)"`

// redactor hides personal data in JSON, and leaves everything else as it is written: the digits of
// numbers, the order of fields, even the white space.
type redactor struct {
	always map[string]bool            // paths in every document
	byType map[string]map[string]bool // paths in the payloads of an event type
}

func newRedactor(cfg Config) *redactor {
	r := &redactor{always: make(map[string]bool), byType: make(map[string]map[string]bool)}
	for _, p := range cfg.Personal {
		r.always[p] = true
	}
	for _, e := range cfg.Publishable {
		paths := make(map[string]bool)
		personal(reflect.TypeOf(e), "", paths, 0)
		r.byType[e.EventType()] = paths
	}
	return r
}

// personal collects the paths of the fields that are tagged `bus:"pii"`.
func personal(t reflect.Type, prefix string, paths map[string]bool, depth int) {
	const deepest = 20 // a type may contain itself
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Array {
		t = t.Elem()
	}
	if t.Kind() == reflect.Map { // its keys are not known: all of it is hidden if any of it is personal
		inside := make(map[string]bool)
		if personal(t.Elem(), "", inside, depth+1); len(inside) > 0 {
			paths[prefix] = true
		}
		return
	}
	if t.Kind() != reflect.Struct || depth > deepest {
		return
	}
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" || (!f.IsExported() && !f.Anonymous) {
			continue
		}
		path := prefix
		if name == "" && !f.Anonymous {
			name = f.Name
		}
		if name != "" {
			path = join(prefix, name)
		}
		if f.Tag.Get("bus") == "pii" {
			paths[path] = true
			continue
		}
		personal(f.Type, path, paths, depth+1)
	}
}

func join(prefix, name string) string {
	if prefix == "" {
		return name
	}
	return prefix + "." + name
}

// payload hides what is personal in an event's payload.
func (r *redactor) payload(eventType, doc string) (string, bool) {
	return r.hide(doc, r.byType[eventType])
}

// result hides what is personal in what a consumer recorded, or in metadata.
func (r *redactor) result(eventType, doc string) (string, bool) {
	return r.hide(doc, r.byType[eventType])
}

// hide replaces the values at the paths. A document that is not JSON is hidden as a whole, if there
// is anything to hide in it.
func (r *redactor) hide(doc string, more map[string]bool) (string, bool) {
	if doc == "" || (len(r.always) == 0 && len(more) == 0) {
		return doc, false
	}
	w := walker{doc: doc, dec: json.NewDecoder(strings.NewReader(doc)), secret: func(path string) bool { return r.always[path] || more[path] }}
	if err := w.value(""); err != nil {
		return hidden, true
	}
	if _, err := w.dec.Token(); !errors.Is(err, io.EOF) {
		return hidden, true
	}
	w.out.WriteString(doc[w.copied:])
	return w.out.String(), w.hidden
}

// walker copies a document, but for the values that are secret.
type walker struct {
	doc    string
	dec    *json.Decoder
	secret func(path string) bool
	out    strings.Builder
	copied int // how much of doc is in out
	hidden bool
}

// value walks one value.
func (w *walker) value(path string) error {
	token, err := w.dec.Token()
	if err != nil {
		return err
	}
	open, ok := token.(json.Delim)
	if !ok {
		return nil
	}
	for w.dec.More() {
		inside := path
		if open == '{' {
			name, err := w.dec.Token()
			if err != nil {
				return err
			}
			if inside = join(path, name.(string)); w.secret(inside) {
				if err := w.hideValue(); err != nil {
					return err
				}
				continue
			}
		}
		if err := w.value(inside); err != nil {
			return err
		}
	}
	_, err = w.dec.Token() // the end of it
	return err
}

// hideValue leaves the next value out.
func (w *walker) hideValue() error {
	var raw json.RawMessage
	if err := w.dec.Decode(&raw); err != nil {
		return err
	}
	end := int(w.dec.InputOffset())
	w.out.WriteString(w.doc[w.copied : end-len(raw)])
	w.out.WriteString(hidden)
	w.copied, w.hidden = end, true
	return nil
}
