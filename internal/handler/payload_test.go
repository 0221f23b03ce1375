package handler

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Consumers have a payload in common only if none of them can change what another one holds.
func TestWhatConsumersMayHaveInCommon(t *testing.T) {
	t.Parallel()
	type inner struct {
		At    time.Time
		Codes [2]uint8
	}
	for _, v := range []any{
		struct{}{}, inner{}, struct {
			inner
			Name  string
			Price float64
			Paid  bool
		}{},
	} {
		require.True(t, immutable(reflect.TypeOf(v)), "%T", v)
	}
	for _, v := range []any{
		struct{ P *int }{},
		struct{ S []string }{},
		struct{ M map[string]int }{},
		struct{ V any }{},
		struct{ A [1][]byte }{},
		struct{ in struct{ p *inner } }{},
		struct {
			time.Time
			P *int
		}{},
	} {
		require.False(t, immutable(reflect.TypeOf(v)), "%T", v)
	}
}

// What was decoded as one type is there for all who take it as that type, and errors are not kept.
func TestPayloadsAreKeptByType(t *testing.T) {
	t.Parallel()
	type a struct{ n int }
	type b struct{ n int }
	var p Payloads
	n := 0
	of := func(shared reflect.Type, v any, err error) any {
		got, gotErr := p.of(shared, func() (any, error) { n++; return v, err })
		require.Equal(t, err, gotErr)
		return got
	}
	of(reflect.TypeFor[a](), nil, errors.New("no JSON"))
	first, second, other := &a{1}, &a{2}, &b{3}
	require.Same(t, first, of(reflect.TypeFor[a](), first, nil))
	require.Same(t, first, of(reflect.TypeFor[a](), second, nil))
	require.Same(t, other, of(reflect.TypeFor[b](), other, nil))
	require.Same(t, second, of(nil, second, nil), "each its own")
	require.Equal(t, 4, n)
}
