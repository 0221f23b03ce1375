package console

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	annasPassword = "correct horse battery"
	ritasPassword = "staple päßwörd 长"
)

// guarded is a console behind passwords, on a server of its own, and what asks it.
func guarded(t *testing.T, f *fake) (ask func(method, path, name, password string, form url.Values) *http.Response) {
	t.Helper()
	check, err := Users(User{Name: "anna", Password: annasPassword, May: Admin()},
		User{Name: "rita", Password: ritasPassword, May: ReadOnly()})
	require.NoError(t, err)
	server := httptest.NewServer(newConsole(f, Config{Authorize: BasicAuth(check), Logger: quiet()}))
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	t.Cleanup(func() { client.CloseIdleConnections(); server.Close() })
	return func(method, path, name, password string, form url.Values) *http.Response {
		r, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, strings.NewReader(form.Encode()))
		require.NoError(t, err)
		if form != nil {
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		}
		if name != "" {
			r.SetBasicAuth(name, password)
		}
		answer, err := client.Do(r)
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, answer.Body)
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		return answer
	}
}

// Whoever has no valid password is asked for one, at every address, so that a browser shows its dialog.
func TestBasicAuthChallenges(t *testing.T) {
	t.Parallel()
	f := &fake{text: "x", count: 3}
	for _, c := range []struct{ name, password string }{
		{"", ""},
		{"anna", ""},
		{"anna", annasPassword + "x"},
		{"anna", ritasPassword},
		{"rita", annasPassword},
		{"ANNA", annasPassword},
		{"eve", annasPassword},
		{"anna:", annasPassword},
	} {
		ask := guarded(t, f) // a wrong password counts
		for _, path := range []string{"/", "/events", "/api/v1/overview", "/assets/console.css", "/nowhere"} {
			answer := ask(http.MethodGet, path, c.name, c.password, nil)
			require.Equal(t, http.StatusUnauthorized, answer.StatusCode, "%q %s", c.name, path)
			require.Equal(t, `Basic realm="bluecone", charset="UTF-8"`, answer.Header.Get("WWW-Authenticate"))
			require.Equal(t, "no-store", answer.Header.Get("Cache-Control"))
			require.Equal(t, policy, answer.Header.Get("Content-Security-Policy"))
		}
		require.Equal(t, http.StatusUnauthorized, ask(http.MethodPost, "/retry", c.name, c.password, everyMutation()["retry"]).StatusCode)
	}
	require.Empty(t, f.done())
	ask := guarded(t, f)
	require.Equal(t, http.StatusOK, ask(http.MethodGet, "/events", "anna", annasPassword, nil).StatusCode)
	require.Equal(t, http.StatusNotFound, ask(http.MethodGet, "/nowhere", "anna", annasPassword, nil).StatusCode)
}

// Whoever guesses has ten guesses a minute for a name, from an address: then not even the right password is looked at.
func TestGuessingPasswordsIsLimited(t *testing.T) {
	t.Parallel()
	ask := guarded(t, &fake{text: "x", count: 3})
	for i := range maxWrong {
		require.Equal(t, http.StatusUnauthorized, ask(http.MethodGet, "/events", "anna", "wrong", nil).StatusCode, i)
		require.Equal(t, http.StatusUnauthorized, ask(http.MethodGet, "/events", "", "", nil).StatusCode, "no password is no wrong one")
	}
	answer := ask(http.MethodGet, "/events", "anna", annasPassword, nil)
	require.Equal(t, http.StatusTooManyRequests, answer.StatusCode)
	require.Equal(t, retryLogin, answer.Header.Get("Retry-After"))
	require.Equal(t, http.StatusOK, ask(http.MethodGet, "/events", "rita", ritasPassword, nil).StatusCode, "others may log in")

	g, now := newGuesses(), time.Now()
	anna := guessOf("192.0.2.1:4711", "anna")
	for range maxWrong {
		require.False(t, g.tooMany(anna, now))
		g.add(anna, now)
	}
	require.True(t, g.tooMany(guessOf("192.0.2.1:4712", "anna"), now.Add(wrongTime-1)), "another connection")
	require.False(t, g.tooMany(guessOf("192.0.2.2:4711", "anna"), now), "another address")
	require.False(t, g.tooMany(anna, now.Add(wrongTime)))
	for i := range maxGuessed + 100 {
		g.add(guessOf("192.0.2.1:4711", strconv.Itoa(i)), now.Add(time.Duration(i)))
		require.LessOrEqual(t, len(g.seen), maxGuessed)
	}
}

// Each user may do what their role may, under their own name.
func TestBasicAuthKnowsRoles(t *testing.T) {
	t.Parallel()
	f := &fake{text: "x", count: 3}
	ask := guarded(t, f)
	skip := everyMutation()["skip"]
	require.Equal(t, http.StatusOK, ask(http.MethodGet, "/events", "rita", ritasPassword, nil).StatusCode)
	f.mu.Lock()
	f.calls = nil
	f.mu.Unlock()
	require.Equal(t, http.StatusForbidden, ask(http.MethodPost, "/skip", "rita", ritasPassword, skip).StatusCode)
	require.Empty(t, f.done())
	require.Equal(t, http.StatusSeeOther, ask(http.MethodPost, "/skip", "anna", annasPassword, skip).StatusCode)
	require.Contains(t, strings.Join(f.done(), "\n"), "anna")
}

// A user's tenants are those of their principal, whatever becomes of the list that was given.
func TestUsersHaveTheirTenants(t *testing.T) {
	t.Parallel()
	tenants := []int64{1, 7}
	check, err := Users(User{Name: "tina", Password: annasPassword, May: ReadOnly(), Tenants: tenants},
		User{Name: "rita", Password: ritasPassword, May: ReadOnly()})
	require.NoError(t, err)
	tenants[0] = 2
	tina, err := check("tina", annasPassword)
	require.NoError(t, err)
	require.Equal(t, []int64{1, 7}, tina.Tenants)
	rita, err := check("rita", ritasPassword)
	require.NoError(t, err)
	require.Empty(t, rita.Tenants)
}

// A check of one's own may fail, and may know nobody: the browser asks again. LocalOnly in front tells others nothing.
func TestBasicAuthWithACheckOfOnesOwn(t *testing.T) {
	t.Parallel()
	away := errors.New("the directory is away")
	for what, check := range map[string]func(string, string) (Principal, error){
		"none": nil, "error": func(string, string) (Principal, error) {
			return everything(), away
		}, "no name": func(string, string) (Principal, error) { return Principal{May: Admin()}, nil },
	} {
		c := newConsole(&fake{}, Config{Authorize: BasicAuth(check), Logger: quiet()})
		answer := get(c, "/", "Authorization", "Basic YTpi")
		require.Equal(t, http.StatusUnauthorized, answer.Code, what)
		require.NotEmpty(t, answer.Header().Get("WWW-Authenticate"), what)
	}
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.SetBasicAuth("a", "b")
	_, err := BasicAuth(func(string, string) (Principal, error) { return Principal{}, away })(r)
	require.ErrorIs(t, err, away)
	c := newConsole(&fake{}, Config{Authorize: LocalOnly(BasicAuth(nil)), Logger: quiet()})
	require.Equal(t, http.StatusNotFound, get(c, "http://console.example/").Code)
}

// All mistakes in a list of users are said at once, and none shows a password.
func TestUsersAreChecked(t *testing.T) {
	t.Parallel()
	_, err := Users(User{Name: "a:b", Password: annasPassword, May: Admin()}, User{Name: "anna", Password: "secret", May: Admin()},
		User{Name: "anna", Password: annasPassword})
	require.ErrorContains(t, err, "the name of user 1 must have 1 to 128 bytes, without a colon")
	require.ErrorContains(t, err, `the password of user 2 ("anna") has 6 bytes: it needs at least 12`)
	require.ErrorContains(t, err, `user 3 ("anna") may not even look: give them console.ReadOnly()`)
	require.ErrorContains(t, err, `two users are called "anna"`)
	require.NotContains(t, err.Error(), "secret")
	check, err := Users()
	require.NoError(t, err)
	_, err = check("", "")
	require.ErrorIs(t, err, ErrNobody)
}
