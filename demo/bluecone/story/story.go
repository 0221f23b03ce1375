// Package story plays the demo's scenarios and checks what came of them. Every check compares
// numbers read back from the database with what the rules of the business demand.
package story

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"

	"github.com/bluecone-go/bluecone/dburl"
	"github.com/bluecone-go/bluecone/demo/bluecone/database"
	"github.com/bluecone-go/bluecone/demo/bluecone/settings"
)

// scenario is one act of the story.
type scenario struct {
	name  string
	about string
	play  func(ctx context.Context, w *world) error
}

// scenarios lists all of them in the order in which they are played.
func scenarios() []scenario {
	return []scenario{
		{"checkout-pay", "an order is placed and paid; coupon, wallet and points follow", checkoutPay},
		{"cancel", "an order is canceled; everything comes back", cancelOrder},
		{"refund", "a paid order is refunded; money and points come back, earned points go", refundOrder},
		{"crash-restart", "a process is killed with events undelivered; a new one delivers them", crashRestart},
		{"duplicate-callback", "the payment callback comes 20 times at once; assets move once", duplicateCallback},
		{"lock-timeout", "locks that are too old are released; a paid order in backoff keeps its own", lockTimeout},
		{"lost-event", "order.paid is lost; the consistency check repairs it: it is saved in full, once", lostEvent},
		{"trace", "one trace from the request to the asset movement", traceOrder},
		{"poison", "one consumer fails for good; the others are done, an alert is raised", poison},
		{"multi-instance", "three processes on one database, one killed at work; nothing is lost or doubled", multiInstance},
		{"two-services", "a second service gives stamps for orders; it, the broker and the monolith are killed", twoServices},
		{"extracted-points", "the points move into a process of their own, over a ledger; both are killed", extractedPoints},
	}
}

// Names lists the scenarios.
func Names() []string {
	var names []string
	for _, s := range scenarios() {
		names = append(names, s.name)
	}
	return names
}

// Select reads a list of names separated by commas; an empty one means all.
func Select(list string) ([]string, error) {
	if list == "" {
		return Names(), nil
	}
	names := strings.Split(list, ",")
	for i, n := range names {
		if names[i] = strings.TrimSpace(n); !slices.Contains(Names(), names[i]) {
			return nil, fmt.Errorf("the scenario %q is unknown; the scenarios are %s", names[i], strings.Join(Names(), ", "))
		}
	}
	return names, nil
}

// Options say what to play, and where.
type Options struct {
	DSN       string // empty for a SQLite file in a temporary folder
	Scenarios []string
	Settings  settings.Settings
	Spans     *Spans
	Out       io.Writer
	Metrics   http.Handler
}

// ErrFailed means that a scenario did not come out as it should.
var ErrFailed = errors.New("not every scenario passed")

// Play plays the scenarios and prints each step, the final balances and a table of results.
func Play(ctx context.Context, o Options) error {
	where := "the database of --dsn"
	if o.DSN == "" {
		where = "a file in a temporary folder (--dsn DSN takes another database)"
		dir, err := os.MkdirTemp("", "bluecone-demo-")
		if err != nil {
			return fmt.Errorf("temporary folder: %w", err)
		}
		defer os.RemoveAll(dir)
		o.DSN = "sqlite://" + filepath.Join(dir, "demo.db")
	}
	db, err := dburl.Open(ctx, o.DSN)
	if err != nil {
		return err
	}
	defer db.Close()
	if err := database.Up(ctx, db); err != nil { // each scenario would fail on its own
		return err
	}
	products := map[dialect.Name]string{dialect.SQLite: "SQLite", dialect.PG: "PostgreSQL", dialect.MySQL: "MariaDB or MySQL"}
	_, _ = fmt.Fprintf(o.Out, "Playing on %s, %s\n", products[db.Dialect().Name()], where)
	w := &world{Options: o, db: db, began: time.Now(), users: make(map[string]string)}
	for _, s := range scenarios() {
		if slices.Contains(o.Scenarios, s.name) && ctx.Err() == nil {
			w.run(ctx, s)
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := w.balances(ctx); err != nil {
		return err
	}
	return w.table()
}

// world is what the scenarios share.
type world struct {
	Options
	db      *bun.DB
	began   time.Time
	now     string            // the scenario under way
	users   map[string]string // what a user is for, by id
	order   []string
	results []result
}

// result is one comparison.
type result struct {
	scenario, expected, got string
	isSkipped               bool
}

func (r result) verdict() string {
	switch {
	case r.isSkipped:
		return "SKIPPED"
	case r.expected == r.got:
		return "PASS"
	}
	return "FAIL"
}

func (w *world) run(ctx context.Context, s scenario) {
	w.now = s.name
	_, _ = fmt.Fprintf(w.Out, "\n▶ %s — %s\n", s.name, s.about)
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if err := s.play(ctx, w); err != nil {
		w.check("it runs", "error: "+strings.Join(strings.Fields(err.Error()), " "))
	}
}

// step prints what happens.
func (w *world) step(format string, args ...any) {
	_, _ = fmt.Fprintf(w.Out, "  %6.2fs  %s\n", time.Since(w.began).Seconds(), fmt.Sprintf(format, args...))
}

// check compares, prints and remembers.
func (w *world) check(expected, got string) {
	r := result{scenario: w.now, expected: expected, got: got}
	w.results = append(w.results, r)
	mark := "✓"
	if r.verdict() == "FAIL" {
		mark = "✗ expected " + expected + ", got"
	}
	w.step("%s %s", mark, got)
}

// skip says what cannot be played here, and why. It is no failure.
func (w *world) skip(expected, why string) {
	w.results = append(w.results, result{scenario: w.now, expected: expected, got: why, isSkipped: true})
	w.step("skipped: %s", why)
}

// table prints all comparisons.
func (w *world) table() error {
	_, _ = fmt.Fprintln(w.Out)
	t := tabwriter.NewWriter(w.Out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "scenario\texpected\tgot\t")
	count := make(map[string]int)
	for _, r := range w.results {
		count[r.verdict()]++
		_, _ = fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", r.scenario, r.expected, r.got, r.verdict())
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, _ = fmt.Fprintf(w.Out, "\n%d passed, %d failed, in %.1f s", count["PASS"], count["FAIL"], time.Since(w.began).Seconds())
	if n := count["SKIPPED"]; n > 0 {
		_, _ = fmt.Fprintf(w.Out, "; %d skipped", n)
	}
	_, _ = fmt.Fprintln(w.Out)
	if count["FAIL"] > 0 {
		return ErrFailed
	}
	const next = "go run ./demo/bluecone serve --dsn sqlite:///tmp/demo.db --faults"
	_, _ = fmt.Fprintln(w.Out, "Next: "+next+" prints a link to the console of a running shop.")
	return nil
}
