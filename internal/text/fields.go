package text

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"unicode"
)

// CheckFields refuses a struct whose fields are all unexported: JSON would be {} whatever they hold. A struct without fields is
// a fact without data, and a type that encodes itself knows what it does.
func CheckFields(t reflect.Type) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || encodesItself(t) {
		return nil
	}
	var hidden []string
	for f := range t.Fields() {
		switch {
		case f.IsExported() || (f.Anonymous && isStruct(f.Type)): // what such a struct exports is encoded
			return nil
		case f.Name != "_":
			hidden = append(hidden, f.Name)
		}
	}
	if len(hidden) == 0 {
		return nil
	}
	first := []rune(hidden[0])
	first[0] = unicode.ToUpper(first[0])
	field, _ := t.FieldByName(hidden[0])
	return fmt.Errorf("%v has only unexported fields (%s), so its payload would be {}: export what is to be saved, such as %s %v `json:\"%s\"`",
		t, strings.Join(hidden, ", "), string(first), field.Type, hidden[0])
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
