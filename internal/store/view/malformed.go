package view

import (
	"context"
	"database/sql"
	"strings"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

// MalformedTypes lists rows of bc_consumer_type that say nothing to anybody: without a type, or of a consumer that is not in
// bc_consumer. It goes through the table by its primary key.
func MalformedTypes(ctx context.Context, r Reader, most int) ([]ConsumerType, error) {
	return r.consumerTypes(ctx, "LEFT JOIN bc_consumer c ON c.name = t.consumer_name WHERE t.event_type = '' OR c.name IS NULL", most)
}

// MalformedInstances lists rows of bc_instance that no instance has written: without a name, with less than no events in flight, or
// last seen later than so long from now. It goes through the table by its primary key.
func MalformedInstances(ctx context.Context, r Reader, than time.Duration, most int) ([]string, error) {
	return r.texts(ctx, "SELECT "+r.name("name")+" FROM bc_instance WHERE name = '' OR in_flight < 0 OR seen_at > "+r.D.After+
		" ORDER BY name LIMIT ?", dialect.Micro(than), most)
}

// MalformedJobs lists rows of bc_job_lease that no instance has written: without a code, in another state than these, with a version
// below zero, or with a lease or a turn later than so long from now. It goes through the table by its primary key.
func MalformedJobs(ctx context.Context, r Reader, than time.Duration, most int) ([]string, error) {
	return r.texts(ctx, "SELECT "+r.name("job_code")+" FROM bc_job_lease WHERE job_code = '' OR lock_version < 0 OR "+
		"last_status NOT IN ('RUNNING', 'SUCCESS', 'FAILED') OR locked_until > "+r.D.After+" OR last_due_at > "+r.D.After+
		" ORDER BY job_code LIMIT ?", dialect.Micro(than), dialect.Micro(than), most)
}

// Cells are the cells of a column that cannot be what the library has written.
type Cells struct {
	Table, Column string
	Count         int
}

// NoNumbers counts the cells that hold a text, or anything else but a whole number, in a column of whole numbers, which SQLite alone
// takes: in all of the library's tables, among so many rows of each, by the primary key, and the newest where that is a number.
func NoNumbers(ctx context.Context, r Reader, among int) (found []Cells, err error) {
	if r.D.Name != "sqlite" {
		return nil, nil
	}
	var parts []string
	var args []any
	err = r.Rows(ctx, func(rows *sql.Rows) error {
		var table, column, newest string
		err := rows.Scan(&table, &column, &newest)
		parts = append(parts, "SELECT ? AS t, ? AS c, COUNT(*) AS n FROM (SELECT ? AS v FROM ?"+newest+" LIMIT ?) AS l "+
			"WHERE typeof(v) NOT IN ('integer', 'null')")
		args = append(args, table, column, bun.Ident(column), bun.Ident(table), among)
		return err
	}, "SELECT m.name, p.name, CASE WHEN m.sql LIKE '%WITHOUT ROWID%' THEN '' ELSE ' ORDER BY rowid DESC' END "+
		"FROM sqlite_master AS m, pragma_table_info(m.name) AS p WHERE m.type = 'table' "+
		"AND m.name LIKE 'bc@_%' ESCAPE '@' AND p.type = 'INTEGER' AND p.pk = 0 ORDER BY m.name, p.cid")
	if err != nil || len(parts) == 0 {
		return nil, err
	}
	err = r.Rows(ctx, func(rows *sql.Rows) error {
		var c Cells
		err := rows.Scan(&c.Table, &c.Column, &c.Count)
		found = append(found, c)
		return err
	}, "SELECT t, c, n FROM ("+strings.Join(parts, " UNION ALL ")+") AS a WHERE n > 0", args...)
	return found, err
}
