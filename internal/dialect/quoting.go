package dialect

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
)

// ErrQuoting means that the sessions of the database read texts in SQL in another way than bun writes them: whoever
// chooses a text could write SQL.
var ErrQuoting = errors.New("the database must not be used with these settings")

// Rower asks for one row.
type Rower interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Quoting looks once whether the database reads texts as bun writes them. It is safe for concurrent use.
type Quoting struct {
	d      Dialect
	isSeen atomic.Bool
}

// NewQuoting returns one that has not looked yet.
func NewQuoting(d Dialect) *Quoting { return &Quoting{d: d} }

// Check looks, unless it was seen before that the database does. Nothing of anybody's is written before.
func (q *Quoting) Check(ctx context.Context, db Rower) error {
	if q.isSeen.Load() {
		return nil
	}
	if err := q.d.CheckQuoting(ctx, db); err != nil {
		return err
	}
	q.isSeen.Store(true)
	return nil
}

// CheckQuoting looks at how the session reads texts. Its answer holds for all sessions of a pool.
func (d Dialect) CheckQuoting(ctx context.Context, db Rower) error {
	var value string
	switch d.Name {
	case "postgres":
		if err := db.QueryRowContext(ctx, "SHOW standard_conforming_strings").Scan(&value); err != nil {
			return fmt.Errorf("look at standard_conforming_strings: %w", err)
		}
		if value == "off" {
			return fmt.Errorf("%w: standard_conforming_strings is off, so a backslash in a text ends it and what follows would run as SQL: "+
				"set it to on for this user and database", ErrQuoting)
		}
	case "mysql":
		if err := db.QueryRowContext(ctx, "SELECT @@SESSION.sql_mode").Scan(&value); err != nil {
			return fmt.Errorf("look at sql_mode: %w", err)
		}
		if strings.Contains(value, "NO_BACKSLASH_ESCAPES") {
			return fmt.Errorf("%w: sql_mode has NO_BACKSLASH_ESCAPES, so each backslash of a text would be stored twice: "+
				"take it out of sql_mode", ErrQuoting)
		}
	}
	return nil
}
