package testdb

import (
	"io/fs"
	"strings"
	"testing"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/migrations"
)

// EachMigration calls fn before each of the SQL files of migrations, with what applies it, as a user's own tool would: it
// writes nothing into bc_schema_version.
func EachMigration(t testing.TB, db *bun.DB, fn func(file string, apply func())) {
	t.Helper()
	files, err := migrations.FS(Dialect(Server(t, db)))
	if err != nil {
		t.Fatalf("testdb: %v", err)
	}
	names, err := fs.Glob(files, "*.sql")
	if err != nil {
		t.Fatalf("testdb: %v", err)
	}
	conn, err := db.Conn(t.Context()) // the files set variables
	if err != nil {
		t.Fatalf("testdb: %v", err)
	}
	defer conn.Close()
	for _, file := range names {
		text, err := fs.ReadFile(files, file)
		if err != nil {
			t.Fatalf("testdb: %v", err)
		}
		fn(file, func() {
			for stmt := range strings.SplitSeq(strings.TrimSpace(string(text)), ";\n") {
				if _, err := conn.ExecContext(t.Context(), stmt); err != nil {
					t.Fatalf("testdb: %s: %s: %v", file, stmt, err)
				}
			}
		})
	}
}
