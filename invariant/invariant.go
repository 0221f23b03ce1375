// Package invariant checks what must be true of a database that the event bus works on, and names
// by event id what is not.
//
// # Contract
//
// [Check] only reads, and asks every question by itself: what one of them finds does not depend on
// another. Without options it checks the bus's own tables; with [Config.Effects] also a table in which
// the handlers of a test note what they did through their transaction, and with [Config.History] what
// the producers were told. Most invariants hold at any moment; those that hold only when nothing is
// under way are marked so below, and checked if [Config.Quiet] says that this is the case.
//
// The numbers are those of docs/reliability.md.
package invariant

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/store/view"
)

// Violation is one thing that is not as it must be.
type Violation struct {
	Invariant string `json:"invariant"` // number and name, as "I4 completeness"
	EventID   string `json:"eventId"`
	Consumer  string `json:"consumer,omitempty"`
	Says      string `json:"says"`
}

// String is one line for people.
func (v Violation) String() string {
	who := v.EventID
	if v.Consumer != "" {
		who += " for " + v.Consumer
	}
	return v.Invariant + ": event " + who + ": " + v.Says
}

// Effects names a table in which handlers note each effect, with the columns id (ascending), consumer,
// event_id, aggregate and seq (the order within the aggregate). It must not have a unique key: the point
// is to see what happens twice.
type Effects struct {
	Table string
	// Unordered lists the consumers to whom the order does not matter.
	Unordered []string
}

// History is what producers were told about the events they saved.
type History struct {
	Committed []string // COMMIT succeeded
	Failed    []string // the transaction was rolled back, or never committed
	// Unknown maps an event whose COMMIT ended in an error to whether its business row exists.
	Unknown map[string]bool
}

// Config says what to check. The zero value checks the bus's own tables.
type Config struct {
	// Quiet says that nothing is under way any more: every event has come to its end. Default: false.
	Quiet bool
	// Stuck is how long after its end a lease may still be there. Default: 2 min.
	Stuck time.Duration
	// Pauses says to look also at the pauses between attempts, which are as they should be unless
	// somebody makes waiting deliveries due by hand. Default: false.
	Pauses bool
	// Effects is the table in which handlers noted what they did. Default: none.
	Effects Effects
	// History is what the producers were told. Default: none.
	History History
	// Most is how many violations of one invariant are reported. Default: 100.
	Most int
}

func (c Config) withDefaults() Config {
	if c.Stuck == 0 {
		c.Stuck = 2 * time.Minute
	}
	if c.Most == 0 {
		c.Most = 100
	}
	return c
}

func (c Config) validate() error {
	if c.Stuck < 0 || c.Most < 0 {
		return fmt.Errorf("invariant.Config: Stuck is %v and Most %d: they must not be negative", c.Stuck, c.Most)
	}
	if strings.Trim(strings.ToLower(c.Effects.Table), "abcdefghijklmnopqrstuvwxyz0123456789_.") != "" {
		return fmt.Errorf("invariant.Config.Effects.Table is %q: a plain name is needed", c.Effects.Table)
	}
	return nil
}

// checker is one check of one database.
type checker struct {
	d   dialect.Dialect
	sql view.Reader
	cfg Config
}

// question is an invariant, and the question for what breaks it.
type question struct {
	invariant string
	broken    view.Question
	quiet     bool // holds only when nothing is under way
}

// Check asks every question. An error means that one could not be asked; what the others have found
// is returned all the same.
func Check(ctx context.Context, db *bun.DB, cfg Config) ([]Violation, error) {
	if db == nil {
		return nil, fmt.Errorf("invariant.Check: %w", dialect.ErrNil)
	}
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	d, err := dialect.Of(db)
	if err != nil {
		return nil, err
	}
	c := &checker{d: d, sql: view.Reader{D: d, Rows: view.On(db)}, cfg: cfg.withDefaults()}
	questions := c.own()
	if cfg.Pauses {
		questions = append(questions, c.pauses()...)
	}
	if cfg.Effects.Table != "" {
		questions = append(questions, c.effects()...)
	}
	var all []Violation
	var errs []error
	for _, q := range questions {
		if q.quiet && !cfg.Quiet {
			continue
		}
		found, err := c.ask(ctx, q)
		all = append(all, found...)
		if err != nil {
			errs = append(errs, fmt.Errorf("invariant: %s: %w", q.invariant, err))
		}
	}
	found, err := c.history(ctx)
	return append(all, found...), errors.Join(append(errs, err)...)
}

func (c *checker) ask(ctx context.Context, q question) ([]Violation, error) {
	found, err := view.Ask(ctx, c.sql, q.broken, c.cfg.Most)
	out := make([]Violation, len(found))
	for i, b := range found {
		out[i] = Violation{Invariant: q.invariant, EventID: b.EventID, Consumer: b.Consumer, Says: b.Says}
	}
	return out, err
}

// Print writes one line per violation, and one that says how it went.
func Print(w io.Writer, found []Violation) error {
	for _, v := range found {
		if _, err := fmt.Fprintln(w, v); err != nil {
			return err
		}
	}
	verdict := "every invariant holds"
	if len(found) > 0 {
		verdict = fmt.Sprintf("%d violations", len(found))
	}
	_, err := fmt.Fprintln(w, verdict)
	return err
}
