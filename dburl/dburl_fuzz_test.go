package dburl

import (
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/bluecone-go/bluecone/internal/hostile"
)

const secret = "hunter2"

// meantAsPassword says that the secret stands once in a DSN, and where a person writes a password: between the user and
// the last @, escaped or not, or as a parameter of that name.
func meantAsPassword(dsn string) bool {
	_, rest, ok := strings.Cut(dsn, "://")
	if !ok || strings.HasPrefix(strings.ToLower(dsn), "sqlite:") || strings.Count(dsn, secret) != 1 {
		return false
	}
	user, after, ok := strings.Cut(rest, ":")
	if at := strings.LastIndex(after, "@"); ok && at >= 0 && strings.Contains(after[:at], secret) && !strings.ContainsAny(user, "/?#") {
		return true
	}
	_, query, _ := strings.Cut(rest, "?")
	query, _, _ = strings.Cut(query, "#")
	values, err := url.ParseQuery(query)
	return err == nil && (strings.Contains(strings.Join(values["password"], ""), secret) ||
		strings.Contains(strings.Join(values["sslpassword"], ""), secret))
}

// A DSN makes a pool, or an error of one line. Neither the error nor what is shown of the address has the password.
func FuzzDSN(f *testing.F) {
	for _, s := range []string{
		"sqlite:///tmp/x.db", "mysql://u:hunter2@h:3306/n", "postgres://u:hunter2@h:5432/n?sslmode=disable", "mysql://u:hunter2@[::1]/n",
		"postgres://u:hunter2@h:x/n",
		"mysql://u:x@12/ab?hunter2@h/n", "postgres://u:1/hunter2@h/n", "postgres://u:1#hunter2@h/n", "mysql://u@h/n?password=hunter2",
		"postgresql://u@h/n?sslpassword=hunter2",
		"mysql://u:hunter2@h/n?tls=false&tls=skip-verify", "u:hunter2@tcp(h)/n", "mysql:u://:hunter2@h", "postgres://a@b:hunter2@h,i:1/n",
		"mysql://u:%68unter2@h/n", "mysql://:hunter2@/",
	} {
		f.Add(s)
	}
	for _, v := range hostile.Values() {
		f.Add(v.Text)
		f.Add("sqlite:///" + v.Text)
		f.Add("mysql://u:hunter2@" + v.Text)
		f.Add("postgres://u:hunter2@h/" + v.Text)
		f.Add("mysql://u:" + v.Text + "hunter2@h/n")
	}
	f.Fuzz(func(t *testing.T, dsn string) {
		if u, err := url.Parse(dsn); err == nil && u.Query().Has("tls-ca") {
			return // it may name a file that never ends
		}
		db, u, err := parse(dsn, "rw")
		var shown string
		if err == nil {
			shown = address(u)
			if err := db.Close(); err != nil {
				t.Error(err)
			}
		} else {
			shown = err.Error()
			if db != nil || !errors.Is(err, ErrDSN) || strings.ContainsAny(shown, "\n\x00") {
				t.Errorf("%q: %v, %v", dsn, db, err)
			}
		}
		if meantAsPassword(dsn) && strings.Contains(shown, secret) {
			t.Errorf("%q: %s", dsn, shown)
		}
	})
}
