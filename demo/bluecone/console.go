package main

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"net/http"
	"sync"
	"time"

	"github.com/bluecone-go/bluecone/console"
	"github.com/bluecone-go/bluecone/ops"
)

// door lets whoever holds the token into the console, and lets their browser change the demo. The token is printed at the
// start and works once: it is exchanged for a session, whose id lives in a cookie that no script and no other site can use.
type door struct {
	mu      sync.Mutex
	token   [sha256.Size]byte
	used    bool
	session [sha256.Size]byte
	until   time.Time // the session ends
}

const sessionCookie = "bluecone_console"

func secret() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// newDoor returns a door and the token that opens it once.
func newDoor() (d *door, token string) {
	token = secret()
	return &door{token: sha256.Sum256([]byte(token))}, token
}

// open exchanges the token for a session id.
func (d *door) open(token string) (session string, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	sent := sha256.Sum256([]byte(token))
	if subtle.ConstantTimeCompare(sent[:], d.token[:]) != 1 || d.used {
		return "", false
	}
	session = secret()
	d.used, d.session, d.until = true, sha256.Sum256([]byte(session)), time.Now().Add(sessionFor)
	return session, true
}

// knows reports whether a request has the one session.
func (d *door) knows(r *http.Request) bool {
	cookie, err := r.Cookie(sessionCookie)
	if err != nil {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	sent := sha256.Sum256([]byte(cookie.Value))
	return d.used && time.Now().Before(d.until) && subtle.ConstantTimeCompare(sent[:], d.session[:]) == 1
}

// authorize lets the one session into the console.
func (d *door) authorize(r *http.Request) (console.Principal, error) {
	if !d.knows(r) {
		return console.Principal{}, console.ErrNobody
	}
	return console.Principal{Name: "demo", May: append(console.Admin(), console.PayloadView)}, nil
}

// handler is the console behind the door.
func (d *door) handler(o *ops.Ops) (http.Handler, error) {
	inside, err := console.New(o, console.Config{Authorize: d.authorize, Title: "bluecone demo", Environment: "demo"})
	if err != nil {
		return nil, err
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token := r.URL.Query().Get("token")
		if r.Method != http.MethodGet || token == "" {
			inside.ServeHTTP(w, r)
			return
		}
		session, ok := d.open(token)
		if !ok {
			http.Error(w, "This token has been used, or is not of this process. Start the demo again for a new one.", http.StatusForbidden)
			return
		}
		http.SetCookie(w, &http.Cookie{ //nolint:gosec // the demo listens on plain HTTP, where a Secure cookie would not come back
			Name: sessionCookie, Value: session, Path: "/", MaxAge: int(sessionFor / time.Second), HttpOnly: true,
			SameSite: http.SameSiteStrictMode,
		})
		w.Header().Set("Referrer-Policy", "no-referrer")
		w.Header().Set("Location", "./")
		w.WriteHeader(http.StatusSeeOther)
	}), nil
}
