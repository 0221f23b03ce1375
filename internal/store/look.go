package store

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/uptrace/bun"
)

// DueQuestion says what a look for due work is about.
type DueQuestion struct {
	New, Scheduled, Expired bool     // events; those that are parked and those that are delayed are both scheduled
	Deliveries              bool     // deliveries that wait for registered consumers
	Left                    []string // keys of consumers: deliveries to them that were left to others
}

// DueAnswer says what of a [DueQuestion] is due.
type DueAnswer struct {
	New, Scheduled, Expired bool
	Consumers               []string // keys of those for which deliveries are due
	Left                    bool
}

// The kinds of rows in the answer to a look.
const (
	lookNew = iota
	lookScheduled
	lookExpired
	lookDeliveries
	lookLeft
)

// LookForDue looks for due work, in one statement that locks nothing: for events along idx_status_next_retry, for deliveries
// along idx_consumer_due. To ask for nothing costs nothing.
//
// For events it does not say EXISTS: PostgreSQL, as long as it believes that many are due, would read the whole table for the first.
// It is not prepared: a plan that PostgreSQL makes while little is open reads all that is open, by another index, as long as it is kept.
func (c Claims) LookForDue(ctx context.Context, idb bun.IDB, q DueQuestion) (a DueAnswer, err error) {
	query, args := c.lookForDue(q)
	if query == "" {
		return a, nil
	}
	rows, err := idb.QueryContext(ctx, query, args...)
	if err == nil {
		err = a.read(rows)
	}
	if err != nil {
		return DueAnswer{}, fmt.Errorf("look for due events: %w", err)
	}
	return a, nil
}

func (c Claims) lookForDue(q DueQuestion) (query string, args []any) {
	var parts []string
	ask := func(wanted bool, kind int, query string) {
		if wanted {
			parts = append(parts, fmt.Sprintf("SELECT %d AS kind, %s", kind, query))
		}
	}
	holds := func(cond string) string { return "'' AS name FROM (SELECT 1 AS one) AS o WHERE " + cond }
	first := func(where string) string {
		return holds("(SELECT 1 FROM " + eventTable + " e WHERE " + where + " ORDER BY e.next_retry_at LIMIT 1) = 1")
	}
	ask(q.New, lookNew, first(c.dueOf(DueNew)))
	ask(q.Scheduled, lookScheduled, first(c.scheduled()))
	ask(q.Expired, lookExpired, first(c.dueOf(DueExpired)))
	ask(q.Deliveries, lookDeliveries, "w.name FROM ("+NewQueues(c.d, c.stmts).Due()+") AS w")
	if len(q.Left) > 0 {
		var left string
		left, args = NewLeft(c.d).Any(q.Left)
		ask(true, lookLeft, holds(left))
	}
	return strings.Join(parts, " UNION ALL "), args
}

func (a *DueAnswer) read(rows *sql.Rows) error {
	defer rows.Close()
	for rows.Next() {
		var kind int
		var name string
		if err := rows.Scan(&kind, &name); err != nil {
			return err
		}
		switch kind {
		case lookNew:
			a.New = true
		case lookScheduled:
			a.Scheduled = true
		case lookExpired:
			a.Expired = true
		case lookDeliveries:
			a.Consumers = append(a.Consumers, name)
		case lookLeft:
			a.Left = true
		}
	}
	return rows.Err()
}
