package handler

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/uptrace/bun"
)

// A bun.Tx takes ? for a value on every database, a bus.Tx the database's own placeholders. An error says what to write
// where they are mixed up: with a bus.Tx that of the statement, with a bun.Tx, whose errors a hook cannot change, that of the handler.

var (
	nativePlaceholder = regexp.MustCompile(`\$[1-9]`)
	// misplacedErrors are what drivers and databases say to $1 in a statement without arguments.
	misplacedErrors = regexp.MustCompile(`there is no parameter \$|expected \d+ arguments, got 0|Unknown column '\$|missing (named )?argument`)
)

// hasNativePlaceholder reports whether a statement of bun's has failed because it has $1 where bun takes ?.
func hasNativePlaceholder(ev *bun.QueryEvent) bool {
	return misplacedErrors.MatchString(ev.Err.Error()) && nativePlaceholder.MatchString(ev.Query)
}

// notePlaceholder remembers, for [Fence.explain], a statement that has failed like that.
func (f *Fence) notePlaceholder(ev *bun.QueryEvent) {
	if ev.Err == nil || !hasNativePlaceholder(ev) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.misplaced = true
}

// explain adds to the error of a handler what to write instead, where the placeholders of its bun.Tx are of the wrong kind.
func (f *Fence) explain(err error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.misplaced {
		return err
	}
	f.misplaced = false
	return fmt.Errorf("%w (a bun.Tx takes ? for a value on every database, not $1: write ?, or register the handler with bus.OnSQL, whose "+
		"bus.Tx takes $1)", err)
}

// explain adds what to write instead, where placeholders are of the wrong kind.
func (t *SQLTx) explain(query string, err error) error {
	var state interface{ SQLState() string }
	if t.fence.dialect.Name == "postgres" && strings.Contains(query, "?") && errors.As(err, &state) && state.SQLState() == "42601" {
		return fmt.Errorf("%w (a bus.Tx takes the database's own placeholders, which are $1, $2 on PostgreSQL, not ?)", err)
	}
	return err
}
