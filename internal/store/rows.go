package store

import (
	"context"
	"database/sql"

	"github.com/uptrace/bun"
)

// tenant reads a tenant_id. NULL is 0, and so is what is no number or, as MySQL takes it from a row that was written by hand, too large
// for one: such a row keeps no other from being read.
type tenant int64

// Scan reads what a driver has got.
func (t *tenant) Scan(value any) error {
	var n sql.NullInt64
	if n.Scan(value) != nil {
		n = sql.NullInt64{}
	}
	*t = tenant(n.Int64)
	return nil
}

// EachRow runs a statement, and calls scan for every row.
func EachRow(ctx context.Context, idb bun.IDB, scan func(rows *sql.Rows) error, query string, args ...any) error {
	rows, err := idb.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// readKeys reads rows of an id and 0 or 1: what it answers of an id is whether any of its rows says 1.
func readKeys(rows *sql.Rows, err error) (map[string]bool, error) {
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	found := make(map[string]bool)
	for rows.Next() {
		var id string
		var says int
		if err := rows.Scan(&id, &says); err != nil {
			return nil, err
		}
		found[id] = found[id] || says == 1
	}
	return found, rows.Err()
}

// readTexts reads rows of one text.
func readTexts(rows *sql.Rows, err error) (out []string, _ error) {
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, rows.Err()
}

// readIDs reads rows of one number.
func readIDs(rows *sql.Rows, err error) (out []int64, _ error) {
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		out = append(out, id)
	}
	return out, rows.Err()
}
