package console

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// ErrTooManyPasswords means that a name sent too many wrong passwords from an address: the console answers 429.
var ErrTooManyPasswords = errors.New("console: too many wrong passwords: try again in a minute")

// ChallengeError is the answer of an [Authorizer] that wants to be asked again with credentials: the console answers 401 with
// the header WWW-Authenticate, by which a browser shows its dialog. Whoever sees it knows that there is a console.
type ChallengeError struct {
	// Header is the value of WWW-Authenticate, such as `Basic realm="bluecone"`.
	Header string
	// Err is why the request was not let in.
	Err error
}

func (e *ChallengeError) Error() string {
	return "console: the request is asked for credentials: " + e.Err.Error()
}

// Unwrap is why the request was not let in.
func (e *ChallengeError) Unwrap() error { return e.Err }

// BasicAuth asks for a name and a password, by the browser's own dialog, and lets check say who that is. [Users] is a check
// for a few users; one of your own compares in constant time. An error of check, or a principal without a name, is asked again.
//
// After ten wrong passwords for a name from one address no other is looked at until a minute after the first of them: the
// error is [ErrTooManyPasswords]. Behind a proxy all have the proxy's address, so whoever guesses there keeps the owner of
// the name out meanwhile: let the proxy limit requests by address, too.
//
// The password travels with every request: serve the console by TLS. A browser remembers it until it is closed, so nobody can log
// out. Changing requests from other sites are refused as always.
func BasicAuth(check func(name, password string) (Principal, error)) Authorizer {
	const challenge = `Basic realm="bluecone", charset="UTF-8"`
	wrong := newGuesses()
	return func(r *http.Request) (Principal, error) {
		name, password, ok := r.BasicAuth()
		if !ok || check == nil {
			return Principal{}, &ChallengeError{challenge, ErrNobody}
		}
		key := guessOf(r.RemoteAddr, name)
		if wrong.tooMany(key, time.Now()) {
			return Principal{}, ErrTooManyPasswords
		}
		p, err := check(name, password)
		if err == nil && p.Name == "" {
			err = ErrNobody
		}
		if err != nil {
			wrong.add(key, time.Now())
			return Principal{}, &ChallengeError{challenge, err}
		}
		return p, nil
	}
}

// User is somebody who may log in with a password.
type User struct {
	// Name is what they type, and what the audit log calls them, at most 128 bytes without a colon.
	Name string
	// Password has at least 12 bytes. Only a hash of it is kept.
	Password string
	// May is what they may do: [ReadOnly], [Operator], [Admin], or a list.
	May []Permission
	// Tenants are those of the [Principal]: empty means all, and what concerns the whole deployment. Default: none.
	Tenants []int64
}

// Users checks names and passwords of a few users, for [BasicAuth]. Comparing takes the same time whatever was sent.
//
//	check, err := console.Users(
//		console.User{Name: "anna", Password: os.Getenv("ANNA_PASSWORD"), May: console.Admin()},
//		console.User{Name: "rita", Password: os.Getenv("RITA_PASSWORD"), May: console.ReadOnly()},
//	)
//	c, err := console.New(o, console.Config{Authorize: console.BasicAuth(check)})
//
// All mistakes are reported at once, and no password is shown.
func Users(users ...User) (check func(name, password string) (Principal, error), err error) {
	type known struct {
		name, password [sha256.Size]byte
		principal      Principal
	}
	all, errs, seen := make([]known, 0, len(users)), []error(nil), make(map[string]bool)
	for i, u := range users {
		errs = append(errs, u.validate(i))
		if seen[u.Name] {
			errs = append(errs, fmt.Errorf("console.Users: two users are called %q", u.Name))
		}
		seen[u.Name] = true
		all = append(all, known{
			sha256.Sum256([]byte(u.Name)), sha256.Sum256([]byte(u.Password)),
			Principal{Name: u.Name, May: slices.Clone(u.May), Tenants: slices.Clone(u.Tenants)},
		})
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return func(name, password string) (Principal, error) {
		n, p, found := sha256.Sum256([]byte(name)), sha256.Sum256([]byte(password)), -1
		for i, u := range all {
			same := subtle.ConstantTimeCompare(n[:], u.name[:]) & subtle.ConstantTimeCompare(p[:], u.password[:])
			found = subtle.ConstantTimeSelect(same, i, found)
		}
		if found < 0 {
			return Principal{}, ErrNobody
		}
		return all[found].principal, nil
	}, nil
}

func (u User) validate(i int) error {
	var errs []error
	if u.Name == "" || len(u.Name) > 128 || strings.ContainsFunc(u.Name, func(r rune) bool { return r == ':' || r < ' ' }) {
		errs = append(errs, fmt.Errorf("console.Users: the name of user %d must have 1 to 128 bytes, without a colon", i+1))
	}
	if len(u.Password) < minPassword {
		errs = append(errs, fmt.Errorf("console.Users: the password of user %d (%.128q) has %d bytes: it needs at least %d, from a random source",
			i+1, u.Name, len(u.Password), minPassword))
	}
	if !slices.Contains(u.May, View) {
		errs = append(errs, fmt.Errorf("console.Users: user %d (%.128q) may not even look: give them console.ReadOnly(), console.Operator() "+
			"or console.Admin()", i+1, u.Name))
	}
	return errors.Join(errs...)
}
