package text

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"unicode"
)

// CheckFields refuses a struct whose fields are all unexported, and one that has such a struct in it: JSON would be {}
// whatever they hold. A struct without fields is a fact without data, and a type that encodes itself knows what it does.
func CheckFields(t reflect.Type) error {
	if t == nil {
		return nil
	}
	if known, ok := checked.Load(t); ok {
		err, _ := known.(error)
		return err
	}
	err := checkFields(t, t, "", make(map[reflect.Type]bool))
	checked.Store(t, err)
	return err
}

var checked sync.Map //nolint:gochecknoglobals // of types: the error, or nil; what a type is does not change

// checkFields looks at what a type has in it, at a path from the outer one.
func checkFields(outer, t reflect.Type, path string, seen map[reflect.Type]bool) error {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Array || t.Kind() == reflect.Map {
		if encodesItself(t) {
			return nil
		}
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || seen[t] || encodesItself(t) {
		return nil
	}
	seen[t] = true
	var hidden []string
	says := false // something
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.IsExported() || (f.Anonymous && isStruct(f.Type)): // what such a struct exports is encoded
			says = true
			if f.Tag.Get("json") == "-" || (f.Anonymous && name == "") {
				continue
			}
			if err := checkFields(outer, f.Type, strings.TrimPrefix(path+"."+f.Name, "."), seen); err != nil {
				return err
			}
		case f.Name != "_":
			hidden = append(hidden, f.Name)
		}
	}
	if says || len(hidden) == 0 {
		return nil
	}
	return onlyHidden(outer, t, path, hidden)
}

// onlyHidden says which fields of a type JSON leaves out, and what to write.
func onlyHidden(outer, t reflect.Type, path string, hidden []string) error {
	first := []rune(hidden[0])
	first[0] = unicode.ToUpper(first[0])
	field, _ := t.FieldByName(hidden[0])
	export := fmt.Sprintf("export what is to be saved, such as %s %v `json:\"%s\"`", string(first), field.Type, hidden[0])
	if path == "" {
		return fmt.Errorf("%v has only unexported fields (%s), so its payload would be {}: %s", t, strings.Join(hidden, ", "), export)
	}
	return fmt.Errorf("%v: the field %s is of type %v, which has only unexported fields (%s), so it would be saved as {}: %s, give the "+
		"type a method MarshalJSON, or leave the field out with `json:\"-\"`",
		outer, path, t, strings.Join(hidden, ", "), export)
}

func isStruct(t reflect.Type) bool {
	return t.Kind() == reflect.Struct || (t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Struct)
}

func encodesItself(t reflect.Type) bool {
	for _, own := range []reflect.Type{reflect.TypeFor[json.Marshaler](), reflect.TypeFor[encoding.TextMarshaler]()} {
		if t.Implements(own) || reflect.PointerTo(t).Implements(own) {
			return true
		}
	}
	return false
}
