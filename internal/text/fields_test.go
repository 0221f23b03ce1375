package text_test

import (
	"fmt"
	"math/big"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/text"
)

type (
	hidden   struct{ a, b int }
	mixed    struct{ A, b int }
	silent   struct{}
	padded   struct{ _ [0]func() }
	embeds   struct{ mixed }
	refers   struct{ *mixed }
	excluded struct {
		A int `json:"-"`
	}
	within struct{ A hidden }
	far    struct {
		A []map[string]*within `json:"a"`
		B int
	}
	left struct {
		A hidden `json:"-"`
		B int
	}
	itself struct {
		A *itself
		B time.Time
		C *big.Int
		D netip.Addr
		E encoded
		F texted
		G silent
		H any
		I []byte
		mixed
	}
	encoded struct{ a int }
	texted  struct{ a int }
)

func (encoded) MarshalJSON() ([]byte, error) { return []byte("{}"), nil }
func (*texted) MarshalText() ([]byte, error) { return nil, nil }

// Only a struct of which JSON would never say anything is refused.
func TestCheckFields(t *testing.T) {
	t.Parallel()
	_, _, _, _, _ = hidden{1, 2}, mixed{1, 2}, padded{}, encoded{1}, texted{1}
	for _, ok := range []any{
		mixed{},
		silent{},
		padded{},
		embeds{},
		refers{},
		excluded{},
		encoded{},
		texted{},
		left{},
		itself{},
		[]itself{},
		time.Time{},
		7,
		map[string]int{},
		&mixed{},
	} {
		require.NoError(t, text.CheckFields(reflect.TypeOf(ok)), "%T", ok)
	}
	for _, bad := range []any{hidden{}, &hidden{}} {
		require.EqualError(t, text.CheckFields(reflect.TypeOf(bad)),
			"text_test.hidden has only unexported fields (a, b), so its payload would be {}: export what is to be saved, such as A int `json:\"a\"`")
	}
	for _, bad := range []any{within{}, &within{}} {
		require.EqualError(t, text.CheckFields(reflect.TypeOf(bad)), fmt.Sprintf("%T: the field A is of type text_test.hidden, which has "+
			"only unexported fields (a, b), so it would be saved as {}: "+
			"export what is to be saved, such as A int `json:\"a\"`, give the type a method MarshalJSON, or leave the field out with "+
			"`json:\"-\"`", bad))
	}
	require.ErrorContains(t, text.CheckFields(reflect.TypeFor[far]()), "text_test.far: the field A.A is of type text_test.hidden")
}
