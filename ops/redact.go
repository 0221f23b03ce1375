package ops

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"

	"github.com/bluecone-go/bluecone/internal/origin"
	"github.com/bluecone-go/bluecone/internal/personal"
)

// What stands for a value that is personal: in JSON, and elsewhere.
const (
	hiddenText = "(hidden)"
	hidden     = `"` + hiddenText + `"`
)

// redactor hides personal data in JSON, and leaves everything else as it is written: the digits of
// numbers, the order of fields, even the white space.
type redactor struct {
	names map[string]bool // fields at any depth of every document
	paths map[string]bool // with dots, in every document
}

func newRedactor(cfg Config) *redactor {
	r := &redactor{names: make(map[string]bool), paths: make(map[string]bool)}
	for _, p := range cfg.Personal {
		if p = personal.Fold(p); strings.Contains(p, ".") {
			r.paths[p] = true
		} else {
			r.names[p] = true
		}
	}
	for _, e := range cfg.Publishable {
		personal.Learn(e.EventType(), reflect.TypeOf(e))
	}
	return r
}

// payload hides what is personal in an event's payload: the paths that its type says, and the names
// and paths of the configuration.
func (r *redactor) payload(eventType, doc string) (string, bool) {
	if eventType == origin.Undecodable {
		return r.message(doc)
	}
	of := personal.Of(eventType)
	return r.hide(doc, len(of.Paths) > 0, func(path, name string) bool { return of.Paths[path] || r.says(path, name) })
}

// result hides what is personal in what a consumer recorded of an event, or in its metadata. Such a document has
// a form of its own, so the personal fields of the type are known there by their names.
func (r *redactor) result(eventType, doc string) (string, bool) {
	of := personal.Of(eventType)
	return r.hide(doc, len(of.Names) > 0, func(path, name string) bool { return of.Names[name] || r.says(path, name) })
}

// entry hides an entry of an event's metadata that is shown by itself.
func (r *redactor) entry(eventType, name, value string) string {
	if name = personal.Fold(name); value != "" && (personal.Of(eventType).Names[name] || r.says(name, name)) {
		return hiddenText
	}
	return value
}

func (r *redactor) says(path, name string) bool { return r.names[name] || r.paths[path] }

// hide replaces the values of secret fields. A document that is not JSON, or nested too deep, is hidden as a whole, if
// there may be anything to hide in it.
func (r *redactor) hide(doc string, more bool, secret func(path, name string) bool) (string, bool) {
	if doc == "" || (len(r.names) == 0 && len(r.paths) == 0 && !more) {
		return doc, false
	}
	w := walker{doc: doc, dec: json.NewDecoder(strings.NewReader(doc)), secret: secret}
	if err := w.walk(); err != nil {
		return hidden, true
	}
	w.out.WriteString(doc[w.copied:])
	return w.out.String(), w.hidden
}

// walker copies a document, but for the values that are secret.
type walker struct {
	doc    string
	dec    *json.Decoder
	secret func(path, name string) bool
	out    strings.Builder
	copied int // how much of doc is in out
	hidden bool
	open   []level // the arrays and objects that the walker is in
}

// level is an array or an object.
type level struct {
	path   string
	object bool
}

// walk goes through the document. It does not call itself: anybody may have written a row, as deep as they like.
func (w *walker) walk() error {
	if err := w.value(""); err != nil {
		return err
	}
	for len(w.open) > 0 {
		in := w.open[len(w.open)-1]
		switch {
		case !w.dec.More():
			if _, err := w.dec.Token(); err != nil { // the end of it
				return err
			}
			w.open = w.open[:len(w.open)-1]
		case in.object:
			if err := w.field(in.path); err != nil {
				return err
			}
		default:
			if err := w.value(in.path); err != nil {
				return err
			}
		}
	}
	if _, err := w.dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is more than one document")
	}
	return nil
}

// field reads a field of an object, and its value, or the beginning of it.
func (w *walker) field(prefix string) error {
	token, err := w.dec.Token()
	if err != nil {
		return err
	}
	key, ok := token.(string)
	if !ok {
		return fmt.Errorf("a field is called %v", token)
	}
	name := personal.Fold(key)
	path := personal.Join(prefix, name)
	if w.secret(path, name) {
		return w.hideValue()
	}
	return w.value(path)
}

// value reads a value, or the beginning of an array or object.
func (w *walker) value(path string) error {
	token, err := w.dec.Token()
	if err != nil {
		return err
	}
	if open, ok := token.(json.Delim); ok {
		w.open = append(w.open, level{path, open == '{'})
	}
	if len(w.open) > maxDepth {
		return fmt.Errorf("it is nested more than %d deep", maxDepth)
	}
	return nil
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
