// Package personal knows which fields of events hold personal data: those with the struct tag `bus:"pii"`.
// What it knows of a type, it knows in the whole process, so that nobody who shows an event has to be told.
package personal

import (
	"reflect"
	"strings"
	"sync"
	"unicode"
)

// Fields are the personal fields of an event type, as [Fold] writes them.
type Fields struct {
	Paths map[string]bool // such as "to.street"
	Names map[string]bool // the last names of the paths
}

//nolint:gochecknoglobals // A console that was not told of a type would show what the type says is personal.
var known struct {
	sync.RWMutex
	types map[string]Fields // the fields of all Go types that an event type has had, by event type
	seen  map[reflect.Type]bool
}

// Learn adds the fields of a Go type of the event type.
func Learn(eventType string, t reflect.Type) {
	known.Lock()
	defer known.Unlock()
	if known.seen[t] {
		return
	}
	if known.types == nil {
		known.types, known.seen = make(map[string]Fields), make(map[reflect.Type]bool)
	}
	all := Fields{Paths: make(map[string]bool), Names: make(map[string]bool)}
	for path := range known.types[eventType].Paths { // readers may hold the map that is there
		all.add(path)
	}
	collect(t, "", all, 0)
	known.types[eventType], known.seen[t] = all, true
}

// Of returns the fields of an event type. Nobody may change the maps.
func Of(eventType string) Fields {
	known.RLock()
	defer known.RUnlock()
	return known.types[eventType]
}

// All returns the personal fields of every event type.
func All() Fields {
	known.RLock()
	defer known.RUnlock()
	all := Fields{Paths: make(map[string]bool), Names: make(map[string]bool)}
	for _, f := range known.types {
		for path := range f.Paths {
			all.add(path)
		}
	}
	return all
}

func (f Fields) add(path string) {
	f.Paths[path] = true
	f.Names[path[strings.LastIndexByte(path, '.')+1:]] = true
}

// deepest is how far a type is looked into: it may contain itself.
const deepest = 20

// collect adds the paths of the fields that are tagged `bus:"pii"`.
func collect(t reflect.Type, prefix string, fields Fields, depth int) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Array {
		t = t.Elem()
	}
	if t.Kind() == reflect.Map { // its keys are not known: all of it is hidden if any of it is personal
		inside := Fields{Paths: make(map[string]bool), Names: make(map[string]bool)}
		collect(t.Elem(), "", inside, depth+1)
		if len(inside.Paths) > 0 {
			fields.add(prefix)
			for name := range inside.Names {
				fields.Names[name] = true
			}
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
			path = Join(prefix, Fold(name))
		}
		if f.Tag.Get("bus") == "pii" {
			if path == prefix { // an embedded type: every field of it
				collectAll(f.Type, prefix, fields)
				continue
			}
			fields.add(path)
			continue
		}
		collect(f.Type, path, fields, depth+1)
	}
}

// collectAll adds every field of an embedded type that is personal as a whole.
func collectAll(t reflect.Type, prefix string, fields Fields) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return
	}
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-":
		case name == "" && f.Anonymous:
			collectAll(f.Type, prefix, fields)
		case name == "":
			fields.add(Join(prefix, Fold(f.Name)))
		default:
			fields.add(Join(prefix, Fold(name)))
		}
	}
}

// Join is the path of a field.
func Join(prefix, name string) string {
	if prefix == "" {
		return name
	}
	return prefix + "." + name
}

// Fold writes a name as it is compared: encoding/json finds a field whatever the case of its letters.
func Fold(name string) string {
	return strings.Map(func(r rune) rune {
		least := r
		for next := unicode.SimpleFold(r); next != r; next = unicode.SimpleFold(next) {
			least = min(least, next)
		}
		return least
	}, name)
}
