package console

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// Whatever a browser says about its languages, and an address about its own, the answer is in one that there is.
func FuzzAcceptLanguage(f *testing.F) {
	for _, s := range []string{
		"", "zh-CN,zh;q=0.9,en;q=0.8", "en;q=0, zh", "de, *;q=0.1", "zh;q=NaN", ";;,,==", "ZH-hant", "*",
		"en-US;q=1e309", "zh;q=-1,en",
	} {
		f.Add(s, "")
		f.Add("", s)
	}
	f.Fuzz(func(t *testing.T, header, asked string) {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("Accept-Language", header)
		q := r.URL.Query()
		q.Set("lang", asked)
		r.URL.RawQuery = q.Encode()
		l := localeOf(r)
		require.Contains(t, languages(), l.lang)
		require.Equal(t, slices.Contains(languages(), asked), l.asked)
		if l.asked {
			require.Equal(t, asked, l.lang)
		}
	})
}
