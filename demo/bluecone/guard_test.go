package main

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A page of another site changes nothing, and one whose name somebody has pointed at this machine reads nothing.
func TestOtherSitesGetNowhere(t *testing.T) {
	t.Parallel()
	s := serveOn(t, "sqlite://"+filepath.Join(t.TempDir(), "demo.db"), nil, "--faults")
	ask := func(method, path, host string, header ...string) int {
		r, err := http.NewRequestWithContext(t.Context(), method, s.base+path, strings.NewReader(`{}`))
		require.NoError(t, err)
		if host != "" {
			r.Host = host
		}
		for i := 0; i+1 < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		res, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		return res.StatusCode
	}
	for _, path := range []string{"/faults", "/jobs/alert/run", "/users", "/orders"} {
		require.Equal(t, http.StatusForbidden, ask(http.MethodPost, path, "", "Sec-Fetch-Site", "cross-site"), path)
		require.Equal(t, http.StatusForbidden, ask(http.MethodPost, path, "", "Origin", "https://evil.example"), path)
		require.Equal(t, http.StatusForbidden, ask(http.MethodPost, path, "", "Origin", "null"), path)
		require.Equal(t, http.StatusMisdirectedRequest, ask(http.MethodPost, path, "evil.example"), path)
		require.NotContains(t, []int{http.StatusForbidden, http.StatusMisdirectedRequest}, ask(http.MethodPost, path, ""), "a program")
		require.NotContains(t, []int{http.StatusForbidden, http.StatusMisdirectedRequest}, ask(http.MethodPost, path, "", "Origin", s.base),
			"a page of its own")
	}
	require.Equal(t, http.StatusMisdirectedRequest, ask(http.MethodGet, "/orders/1/timeline", "evil.example"))
	require.Equal(t, http.StatusNotFound, ask(http.MethodGet, "/orders/1/timeline", "localhost"))
}

// A session of the console ends.
func TestASessionEnds(t *testing.T) {
	t.Parallel()
	d, token := newDoor()
	session, ok := d.open(token)
	require.True(t, ok)
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.AddCookie(&http.Cookie{Name: sessionCookie, Value: session})
	_, err := d.authorize(r)
	require.NoError(t, err)
	d.until = time.Now().Add(-time.Second)
	_, err = d.authorize(r)
	require.Error(t, err)
}
