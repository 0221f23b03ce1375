package text_test

import (
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
	encoded struct{ a int }
	texted  struct{ a int }
)

func (encoded) MarshalJSON() ([]byte, error) { return []byte("{}"), nil }
func (*texted) MarshalText() ([]byte, error) { return nil, nil }

// Only a struct of which JSON would never say anything is refused.
func TestCheckFields(t *testing.T) {
	t.Parallel()
	_, _, _, _, _ = hidden{1, 2}, mixed{1, 2}, padded{}, encoded{1}, texted{1}
	for _, ok := range []any{mixed{}, silent{}, padded{}, embeds{}, refers{}, excluded{}, encoded{}, texted{}, time.Time{}, 7, map[string]int{}, &mixed{}} {
		require.NoError(t, text.CheckFields(reflect.TypeOf(ok)), "%T", ok)
	}
	for _, bad := range []any{hidden{}, &hidden{}} {
		require.EqualError(t, text.CheckFields(reflect.TypeOf(bad)),
			"text_test.hidden has only unexported fields (a, b), so its payload would be {}: export what is to be saved, such as A int `json:\"a\"`")
	}
}
