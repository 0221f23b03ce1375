// Package migrations holds the tables of bluecone as plain, versioned SQL for each
// database, and applies it.
//
// # Contract
//
// [Up] may be called by any number of processes at once, and again after a process was
// killed half-way: one of them works at a time, and every statement can be repeated. It
// never changes or drops what it did not create. To run the SQL with a tool of your own,
// take it from [FS].
package migrations

import (
	"context"
	"embed"
	"fmt"
	"hash/fnv"
	"io/fs"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

//go:embed mysql/*.sql postgres/*.sql sqlite/*.sql
var files embed.FS

// Migration is one numbered SQL file.
type Migration struct {
	// Version is the number its name begins with; they apply in this order. Default: none, from 1.
	Version int
	// Name is the rest of the file's name, without ".sql". Default: none.
	Name string
	// AppliedAt is when it was applied, UTC by the database's clock. Default: zero, it is pending.
	AppliedAt time.Time

	checksum string
	sql      string
}

func (m Migration) file() string { return fmt.Sprintf("%04d_%s.sql", m.Version, m.Name) }

// FS returns the SQL files of "mysql" (MariaDB too), "postgres" or "sqlite".
func FS(dialectName string) (fs.FS, error) {
	switch dialectName {
	case "mysql", "postgres", "sqlite":
		return fs.Sub(files, dialectName)
	}
	return nil, fmt.Errorf("migrations: dialect %q is unknown: it must be mysql, postgres or sqlite", dialectName)
}

// Up applies what is pending, over one connection of db. An applied file that has changed since,
// and a database that is ahead of this code, are errors. It waits up to two minutes, or until
// ctx ends, for another process that is migrating.
func Up(ctx context.Context, db *bun.DB) error {
	d, err := dialect.Of(db)
	if err != nil {
		return err
	}
	wanted, err := load(d.Name)
	if err != nil {
		return err
	}
	conn, err := connect(ctx, db)
	if err != nil {
		return err
	}
	defer conn.Close()
	for more := true; more && err == nil; {
		err = locked(ctx, conn, d, func() (err error) {
			more, err = applyNext(ctx, conn, d, wanted)
			return err
		})
	}
	return err
}

// Status lists the migrations of this code, oldest first, and when each was applied. It writes
// nothing: a database that [Up] has never seen has them all pending.
func Status(ctx context.Context, db *bun.DB) ([]Migration, error) {
	d, err := dialect.Of(db)
	if err != nil {
		return nil, err
	}
	all, err := load(d.Name)
	if err != nil {
		return nil, err
	}
	var tables int
	if err := db.QueryRowContext(ctx, hasVersionTable[d.Name]).Scan(&tables); err != nil {
		return nil, fmt.Errorf("migrations: look for %s: %w", versionTable, err)
	}
	if tables == 0 {
		return all, nil
	}
	applied, err := readApplied(ctx, db, d)
	if err != nil {
		return nil, err
	}
	for i := range all {
		all[i].AppliedAt = applied[all[i].Version].AppliedAt
	}
	return all, nil
}

var fileName = regexp.MustCompile(`^(\d{4})_(\w+)\.sql$`)

func load(dialectName string) ([]Migration, error) {
	dir, err := FS(dialectName)
	if err != nil {
		return nil, err
	}
	entries, err := fs.ReadDir(dir, ".")
	if err != nil {
		return nil, err
	}
	var out []Migration
	for _, e := range entries {
		parts := fileName.FindStringSubmatch(e.Name())
		if parts == nil {
			return nil, fmt.Errorf("migrations: file name %q does not read NNNN_name.sql", e.Name())
		}
		version, err := strconv.Atoi(parts[1])
		if err != nil {
			return nil, err
		}
		text, err := fs.ReadFile(dir, e.Name())
		if err != nil {
			return nil, err
		}
		out = append(out, Migration{Version: version, Name: parts[2], sql: string(text), checksum: checksum(text)})
	}
	return out, nil
}

func checksum(text []byte) string {
	h := fnv.New64a()
	_, _ = h.Write(text) // never fails
	return strconv.FormatUint(h.Sum64(), 16)
}

const versionTable = "bc_schema_version"

var hasVersionTable = map[string]string{ //nolint:gochecknoglobals // a constant table
	"mysql":    "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = '" + versionTable + "'",
	"postgres": "SELECT COUNT(to_regclass('" + versionTable + "'))",
	"sqlite":   "SELECT COUNT(*) FROM sqlite_master WHERE type = 'table' AND name = '" + versionTable + "'",
}

var timeType = map[string]string{ //nolint:gochecknoglobals // a constant table
	"mysql": "DATETIME(6)", "postgres": "timestamptz", "sqlite": "TEXT",
}

// applyNext applies the first migration that is pending, and tells whether there was one. Each has the lock, and where DDL
// can be rolled back a transaction, to itself: nobody waits for one because of the next.
func applyNext(ctx context.Context, conn bun.Conn, d dialect.Dialect, wanted []Migration) (more bool, err error) {
	create := "CREATE TABLE IF NOT EXISTS " + versionTable +
		" (version INTEGER NOT NULL PRIMARY KEY, name VARCHAR(128) NOT NULL, checksum VARCHAR(64) NOT NULL, applied_at " + timeType[d.Name] +
		" NOT NULL)"
	if d.Name == "mysql" {
		create += " ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin"
	}
	if _, err := conn.ExecContext(ctx, create); err != nil {
		return false, fmt.Errorf("migrations: create %s: %w", versionTable, err)
	}
	applied, err := readApplied(ctx, conn, d)
	if err != nil {
		return false, err
	}
	if err := compare(applied, wanted); err != nil {
		return false, err
	}
	for _, m := range wanted {
		if _, done := applied[m.Version]; !done {
			return true, run(ctx, conn, d, m)
		}
	}
	return false, nil
}

// compare makes sure that what the database has is what this code would have applied.
func compare(applied map[int]Migration, wanted []Migration) error {
	last := wanted[len(wanted)-1].Version
	if newest := slices.Max(append(slices.Collect(maps.Keys(applied)), 0)); newest > last {
		return fmt.Errorf("migrations: the database is ahead: it has version %d (%s), this code knows only %d: "+
			"run the newer code, or restore a backup",
			newest, applied[newest].Name, last)
	}
	for _, m := range wanted {
		if done, ok := applied[m.Version]; ok && done.checksum != m.checksum {
			return fmt.Errorf("migrations: %s has changed since it was applied at %s (checksum %s then, %s now): "+
				"never edit an applied file, add a new one",
				m.file(), done.AppliedAt.Format(time.RFC3339), done.checksum, m.checksum)
		}
	}
	return nil
}

func readApplied(ctx context.Context, idb bun.IDB, d dialect.Dialect) (map[int]Migration, error) {
	rows, err := idb.QueryContext(ctx, "SELECT version, name, checksum, COALESCE("+d.Micros("applied_at")+", 0) FROM "+versionTable)
	if err != nil {
		return nil, fmt.Errorf("migrations: read %s: %w", versionTable, err)
	}
	defer rows.Close()
	out := make(map[int]Migration)
	for rows.Next() {
		var m Migration
		var at int64
		if err := rows.Scan(&m.Version, &m.Name, &m.checksum, &at); err != nil {
			return nil, fmt.Errorf("migrations: read %s: %w", versionTable, err)
		}
		m.AppliedAt = time.UnixMicro(at).UTC()
		out[m.Version] = m
	}
	return out, rows.Err()
}

// run executes the statements of one file. MySQL commits each of them by itself, so the
// version row comes last and every statement can be repeated.
func run(ctx context.Context, conn bun.Conn, d dialect.Dialect, m Migration) error {
	if check := checks[m.Version]; check != nil {
		if err := check(ctx, conn, d); err != nil {
			return fmt.Errorf("migrations: %s/%s: %w", d.Name, m.file(), err)
		}
	}
	for i, stmt := range statements(m.sql) {
		if _, err := conn.ExecContext(ctx, stmt); err != nil {
			return fmt.Errorf("migrations: %s/%s, statement %d (%s): %w", d.Name, m.file(), i+1, head(stmt), err)
		}
	}
	_, err := conn.ExecContext(ctx, "INSERT INTO "+versionTable+" (version, name, checksum, applied_at) VALUES (?, ?, ?, "+d.Now+")",
		m.Version, m.Name, m.checksum)
	if err != nil {
		return fmt.Errorf("migrations: %s/%s: note the version: %w", d.Name, m.file(), err)
	}
	return nil
}

// statements splits a file at the semicolons that end a line.
func statements(text string) []string {
	var out []string
	for stmt := range strings.SplitSeq(strings.ReplaceAll(text, "\r\n", "\n")+"\n", ";\n") {
		if stmt = strings.TrimSpace(stmt); !blank(stmt) {
			out = append(out, stmt)
		}
	}
	return out
}

// head is the first line of a statement that is no comment.
func head(stmt string) string {
	for line := range strings.Lines(stmt) {
		if !blank(line) {
			return strings.TrimSpace(line)
		}
	}
	return ""
}

// blank reports whether a piece of SQL is empty but for comments.
func blank(stmt string) bool {
	for line := range strings.Lines(stmt) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "--") {
			return false
		}
	}
	return true
}
