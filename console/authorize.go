package console

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"net"
	"net/http"
	"strings"
)

// minToken is the least length of a bearer token. Shorter ones can be guessed.
const minToken = 32

// BearerToken authorizes requests with "Authorization: Bearer TOKEN". Only a hash of the token is kept, and
// comparing takes the same time whatever was sent. A token of less than 32 bytes is a mistake.
func BearerToken(token string, p Principal) (Authorizer, error) {
	if len(token) < minToken {
		return nil, fmt.Errorf("console: the bearer token has %d bytes: it needs at least %d, from a random source", len(token), minToken)
	}
	want := sha256.Sum256([]byte(token))
	return func(r *http.Request) (Principal, error) {
		scheme, sent, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		got := sha256.Sum256([]byte(sent))
		if subtle.ConstantTimeCompare(got[:], want[:]) != 1 || !strings.EqualFold(scheme, "Bearer") {
			return Principal{}, ErrNobody
		}
		return p, nil
	}, nil
}

// LocalOnly lets only requests of this machine through to next. It looks at the address of the connection, never
// at X-Forwarded-For, and at the Host header, so that a web page of somebody else whose name points
// to 127.0.0.1 is not taken for a local one. Do not use it behind a proxy on the same machine: there, everybody is local.
func LocalOnly(next Authorizer) Authorizer {
	return func(r *http.Request) (Principal, error) {
		if !loopback(r.RemoteAddr) || !localName(r.Host) {
			return Principal{}, ErrNobody
		}
		return next(r)
	}
}

func loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

func localName(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = hostport
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return strings.EqualFold(host, "localhost") || (ip != nil && ip.IsLoopback())
}

// Anyone lets everybody in as p. It is for tests and for handlers that are guarded already, by a mux
// or a proxy that nobody can go around.
func Anyone(p Principal) Authorizer {
	return func(*http.Request) (Principal, error) { return p, nil }
}
