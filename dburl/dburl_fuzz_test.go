package dburl

import (
	"errors"
	"strings"
	"testing"

	"github.com/bluecone-go/bluecone/internal/hostile"
)

// A DSN makes a pool, or an error of one line that does not show the password.
func FuzzDSN(f *testing.F) {
	for _, s := range []string{"sqlite:///tmp/x.db", "mysql://u:secret@h:3306/n", "postgres://u:secret@h:5432/n?sslmode=disable", "mysql://u:secret@[::1]/n", "postgres://u:secret@h:x/n"} {
		f.Add(s)
	}
	for _, v := range hostile.Values() {
		f.Add(v.Text)
		f.Add("sqlite:///" + v.Text)
		f.Add("mysql://u:secret@" + v.Text)
		f.Add("postgres://u:secret@h/" + v.Text)
	}
	f.Fuzz(func(t *testing.T, dsn string) {
		db, _, err := parse(dsn, "rw")
		if err == nil {
			if err := db.Close(); err != nil {
				t.Error(err)
			}
			return
		}
		if db != nil || !errors.Is(err, ErrDSN) || strings.ContainsAny(err.Error(), "\n\x00") {
			t.Errorf("%q: %v, %v", dsn, db, err)
		}
		if strings.Contains(dsn, "secret") && strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", dsn, err)
		}
	})
}
