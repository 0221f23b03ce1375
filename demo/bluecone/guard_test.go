package main

import (
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// request sends a request with these headers and answers its status.
func request(t *testing.T, method, url, host string, header ...string) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(`{}`))
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

// changing are the addresses that change the demo.
func changing() []string {
	return []string{"/faults", "/jobs/alert/run", "/users", "/orders", "/orders/1/pay", "/orders/1/cancel", "/orders/1/refund"}
}

// A page of another site changes nothing, and one whose name somebody has pointed at this machine reads nothing.
func TestOtherSitesGetNowhere(t *testing.T) {
	t.Parallel()
	s := serveOn(t, "sqlite://"+filepath.Join(t.TempDir(), "demo.db"), nil, "--faults")
	refusals := []int{http.StatusForbidden, http.StatusMisdirectedRequest}
	for _, path := range changing() {
		url := s.base + path
		require.Equal(t, http.StatusForbidden, request(t, http.MethodPost, url, "", "Sec-Fetch-Site", "cross-site"), path)
		require.Equal(t, http.StatusForbidden, request(t, http.MethodPost, url, "", "Origin", "https://evil.example"), path)
		require.Equal(t, http.StatusForbidden, request(t, http.MethodPost, url, "", "Origin", "null"), path)
		require.Equal(t, http.StatusMisdirectedRequest, request(t, http.MethodPost, url, "evil.example"), path)
		require.NotContains(t, refusals, request(t, http.MethodPost, url, ""), "a program")
		require.NotContains(t, refusals, request(t, http.MethodPost, url, "", "User-Agent", "Mozilla/5.0"), "a program that passes for a browser")
		require.NotContains(t, refusals, request(t, http.MethodPost, url, "", "Origin", s.base), "a program that says the right origin")
	}
	require.Equal(t, http.StatusMisdirectedRequest, request(t, http.MethodGet, s.base+"/orders/1/timeline", "evil.example"))
	require.Equal(t, http.StatusNotFound, request(t, http.MethodGet, s.base+"/orders/1/timeline", "localhost"))
}

// A browser changes the demo only with the session that the printed link opens: a page of the same origin is not enough.
func TestABrowserNeedsTheSession(t *testing.T) {
	t.Parallel()
	s := serveOn(t, "sqlite://"+filepath.Join(t.TempDir(), "demo.db"), nil, "--faults")
	link := regexp.MustCompile(`console: (http://\S+)`).FindStringSubmatch(s.stdout.String())
	require.NotNil(t, link)
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	browser := &http.Client{Jar: jar}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, link[1], nil)
	require.NoError(t, err)
	res, err := browser.Do(r)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	base, err := url.Parse(s.base)
	require.NoError(t, err)
	require.Len(t, jar.Cookies(base), 1)
	session := jar.Cookies(base)[0].String()
	for _, path := range changing() {
		for _, headers := range [][]string{
			{"Sec-Fetch-Site", "same-origin", "Origin", s.base}, // on this machine, and over TLS
			{"User-Agent", "Mozilla/5.0", "Origin", s.base},     // elsewhere a browser does not say from which site a request comes
		} {
			url := s.base + path
			require.Equal(t, http.StatusForbidden, request(t, http.MethodPost, url, "", headers...), path)
			require.Equal(t, http.StatusForbidden,
				request(t, http.MethodPost, url, "", append(headers, "Cookie", sessionCookie+"="+strings.Repeat("0", 64))...), path)
			require.NotEqual(t, http.StatusForbidden, request(t, http.MethodPost, url, "", append(headers, "Cookie", session)...), path)
		}
	}
	require.Equal(t, http.StatusOK, request(t, http.MethodGet, s.base+"/stats", "", "Sec-Fetch-Site", "none"), "reading changes nothing")
}

// On an address that others reach, too, no name is answered that nobody has allowed: somebody may have pointed it here.
func TestNamesOfOthersAreRefusedEverywhere(t *testing.T) {
	t.Parallel()
	s := serveOn(t, "sqlite://"+filepath.Join(t.TempDir(), "demo.db"), nil, "--addr", "0.0.0.0:0", "--host", "shop.example,demo.test")
	_, port, err := net.SplitHostPort(strings.TrimPrefix(s.base, "http://"))
	require.NoError(t, err)
	base := "http://127.0.0.1:" + port
	for _, host := range []string{
		"evil.example", "evil.example:" + port, "shop.example.evil.example", "localhost.evil.example",
		"0x7f000001", "-",
	} {
		for _, path := range []string{"/orders/1/timeline", "/stats", "/metrics", "/livez", "/console/", "/console/?token=x"} {
			require.Equal(t, http.StatusMisdirectedRequest, request(t, http.MethodGet, base+path, host), "%s at %s", path, host)
		}
		require.Equal(t, http.StatusMisdirectedRequest, request(t, http.MethodPost, base+"/users", host), host)
	}
	for _, host := range []string{
		"localhost", "LOCALHOST:" + port, "127.0.0.1:" + port, "192.0.2.7", "[2001:db8::1]:" + port, "[::1]",
		"shop.example", "Demo.Test:80",
	} {
		require.Equal(t, http.StatusOK, request(t, http.MethodGet, base+"/stats", host), host)
	}
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
