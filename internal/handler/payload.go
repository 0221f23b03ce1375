package handler

import (
	"reflect"
	"sync"
	"time"
)

// Payloads are what the payload of one event decodes into, once for all consumers that take it as
// the same type. The zero value is ready.
type Payloads struct {
	mu      sync.Mutex
	decoded []any
}

// of returns the payload as a pointer to t. Without a type, because handlers could write to what a
// copy refers to, or for a delivery that is on its own, it is decoded anew.
func (p *Payloads) of(t reflect.Type, decode func() (any, error)) (any, error) {
	if p == nil || t == nil {
		return decode()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, v := range p.decoded {
		if reflect.TypeOf(v).Elem() == t {
			return v, nil
		}
	}
	v, err := decode()
	if err == nil {
		p.decoded = append(p.decoded, v)
	}
	return v, err
}

// immutable reports whether nobody who holds a copy of a value of type t can change another copy.
func immutable(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Struct:
		for f := range t.Fields() {
			if !immutable(f.Type) {
				return t == reflect.TypeFor[time.Time]() // its location is never written to
			}
		}
		return true
	case reflect.Array:
		return immutable(t.Elem())
	case reflect.Pointer, reflect.Map, reflect.Slice, reflect.Interface, reflect.Chan, reflect.Func, reflect.UnsafePointer:
		return false
	default:
		return true
	}
}
