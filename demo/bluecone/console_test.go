package main

import (
	"net/http"
	"net/http/cookiejar"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// The printed link opens the console once; what it leaves in the browser goes on working.
func TestConsoleTokenWorksOnce(t *testing.T) {
	t.Parallel()
	s := serveOn(t, "sqlite://"+filepath.Join(t.TempDir(), "demo.db"), nil)
	link := regexp.MustCompile(`console: (http://\S+/console/)\?token=([0-9a-f]{64})`).FindStringSubmatch(s.stdout.String())
	require.NotNil(t, link, s.stdout.String())
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	browser := &http.Client{Jar: jar, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	stranger := &http.Client{}
	get := func(c *http.Client, url string) *http.Response {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		require.NoError(t, err)
		res, err := c.Do(req)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		return res
	}
	require.Equal(t, http.StatusNotFound, get(stranger, link[1]).StatusCode)
	require.Equal(t, http.StatusForbidden, get(stranger, link[1]+"?token=wrong").StatusCode)
	first := get(browser, link[1]+"?token="+link[2])
	require.Equal(t, http.StatusSeeOther, first.StatusCode)
	cookie := first.Cookies()[0]
	require.True(t, cookie.HttpOnly && cookie.SameSite == http.SameSiteStrictMode && cookie.Path == "/")
	require.Equal(t, http.StatusOK, get(browser, link[1]).StatusCode)
	require.Equal(t, http.StatusOK, get(browser, link[1]+"events").StatusCode)
	require.Equal(t, http.StatusForbidden, get(stranger, link[1]+"?token="+link[2]).StatusCode)
	require.Equal(t, http.StatusNotFound, get(stranger, link[1]).StatusCode)
}
