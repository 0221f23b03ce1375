// Package doctor examines whether a database, and what lies in it, is fit for the event bus.
//
// # Contract
//
// [Examine] only reads. Every check answers at least one [Finding]: OK, WARN (the bus works, but
// a failure may do damage) or FAIL (events would be lost, cut or never found). A finding that is not OK
// says what to do about it. A check that cannot look, for want of a privilege say, is a WARN of its
// own: it never hides behind the others. Only if no migration has been applied, one WARN stands for all checks of the tables.
//
// [Start] is the form for the start of a program: it logs every WARN once and returns an error, which
// should end the start, if anything is a FAIL.
package doctor

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/store/view"
	"github.com/bluecone-go/bluecone/internal/text"
)

// Level says how bad a finding is.
type Level string

// The levels of a finding.
const (
	OK   Level = "OK"
	Warn Level = "WARN"
	Fail Level = "FAIL"
)

// Finding is what one check has found.
type Finding struct {
	Check  string `json:"check"`
	Level  Level  `json:"level"`
	Rule   string `json:"rule,omitempty"` // durable code, such as "fsync_off", unless OK
	Says   string `json:"says"`
	Remedy string `json:"remedy,omitempty"` // what to do, unless OK
	// Args are the values in both sentences, by name, for translations.
	Args map[string]string `json:"args,omitempty"`
}

// Config says what the database has to be fit for. The zero value works.
type Config struct {
	// MaxPayload is outbox.Config.MaxPayload. Default: 256 KiB.
	MaxPayload int
	// Workers is how many transactions the consumers of this process may have open at a time,
	// the sum of their Concurrency. Default: 0, not checked.
	Workers int
	// ClockOffset is how far the clocks of this machine and the database may be apart. Nothing
	// but people is misled by it: all times are the database's. Default: 1 s.
	ClockOffset time.Duration
	// Keep is outbox.RetentionConfig.Keep. Negative: it is off on purpose, and not checked. Default: 7 days.
	Keep time.Duration
	// Brokers are the ends of this process at message brokers, whose settings are examined, too. Default: none.
	Brokers []Broker
	// Accept names checks whose FAIL is only a WARN here: "durability" on a throw-away server, say.
	// Default: none.
	Accept []string
}

func (c Config) validate() error {
	var errs []error
	if c.MaxPayload < 0 || c.Workers < 0 || c.ClockOffset < 0 {
		errs = append(errs, fmt.Errorf("doctor.Config: MaxPayload is %d, Workers %d and ClockOffset %v: they must not be negative", c.MaxPayload,
			c.Workers, c.ClockOffset))
	}
	var names []string
	for _, c := range checks() {
		names = append(names, c.name)
	}
	for _, name := range c.Accept {
		if !slices.Contains(names, name) {
			errs = append(errs, fmt.Errorf("doctor.Config.Accept: there is no check %q: the checks are %s", name, strings.Join(names, ", ")))
		}
	}
	return errors.Join(errs...)
}

func (c Config) withDefaults() Config {
	if c.MaxPayload == 0 {
		c.MaxPayload = 256 << 10
	}
	if c.ClockOffset == 0 {
		c.ClockOffset = time.Second
	}
	if c.Keep == 0 {
		c.Keep = 7 * 24 * time.Hour
	}
	return c
}

// Report is what an examination has found, in the order of the checks.
type Report []Finding

// Worst is the highest level in the report.
func (r Report) Worst() Level {
	worst := OK
	for _, f := range r {
		if f.Level == Fail || (f.Level == Warn && worst == OK) {
			worst = f.Level
		}
	}
	return worst
}

// Print writes one line per finding. What could steer a terminal is written as escapes.
func (r Report) Print(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range r {
		line := f.Says
		if f.Remedy != "" {
			line += " — " + f.Remedy
		}
		if _, err := fmt.Fprintf(tw, "%s\t%s\t%s\n", f.Level, f.Check, text.Visible(line)); err != nil {
			return err
		}
	}
	return tw.Flush()
}

// exam is one examination.
type exam struct {
	db  *bun.DB
	d   dialect.Dialect
	sql view.Reader // what it asks about the library's tables
	cfg Config

	isEmpty bool // no migration has been applied
}

// check looks at one thing. No findings and no error is OK.
type check struct {
	name     string
	dialects string // empty means all
	fine     string // what an OK says
	look     func(ctx context.Context, x *exam) ([]Finding, error)
}

// Examine runs every check. It returns an error only if the database cannot be asked at all.
func Examine(ctx context.Context, db *bun.DB, cfg Config) (Report, error) {
	if db == nil {
		return nil, fmt.Errorf("doctor.Examine: %w", dialect.ErrNil)
	}
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	d, err := dialect.Of(db)
	if err != nil {
		return nil, err
	}
	if err := db.PingContext(ctx); err != nil {
		return nil, fmt.Errorf("doctor: the database does not answer: %w", err)
	}
	x := &exam{db: db, d: d, sql: view.Reader{D: d, Names: longestName, Rows: view.On(db)}, cfg: cfg.withDefaults()}
	var r Report
	for _, c := range checks() {
		if c.dialects == "" || strings.Contains(c.dialects, d.Name) {
			r = append(r, c.run(ctx, x)...)
		}
		if x.isEmpty { // every other check would say the same
			return append(r, unmigrated()...), nil
		}
	}
	return r, nil
}

// unmigrated stands for all checks of the tables when there are none.
func unmigrated() []Finding {
	found := warn("unmigrated", "not examined: there are none yet",
		"migrate first (bluecone migrate up, or migrations.Up), then run the doctor again", nil)
	found[0].Check = "tables"
	return found
}

func checks() []check {
	return append(append(serverChecks(), schemaChecks()...), dataChecks()...)
}

func (c check) run(ctx context.Context, x *exam) []Finding {
	found, err := c.look(ctx, x)
	if err != nil {
		found = append(found, warn("unexamined", "could not be examined: {error}", unexaminedRemedy, values{"error": text.Error(err)})...)
	}
	if len(found) == 0 {
		found = []Finding{{Level: OK, Says: c.fine}}
	}
	if len(found) > mostFindings {
		found = append(found[:mostFindings:mostFindings], notAll(mostFindings)...)
	}
	for i := range found {
		found[i].Check = c.name
		if found[i].Level == Fail && slices.Contains(x.cfg.Accept, c.name) {
			found[i].Level = Warn
		}
	}
	return found
}

const unexaminedRemedy = "run the doctor as a user who may see this"

// Unexamined reports what the database answered to a check that could not look.
func (f Finding) Unexamined() (says string, ok bool) { return f.Args["error"], f.Rule == "unexamined" }

// Logged is a finding of a check that could not look, with the reference of a line in a log instead of what the database
// answered: for readers who may not see that.
func (f Finding) Logged(reference string) Finding {
	logged := warn("unexamined_logged", "could not be examined: the log of the service says why, under the reference {reference}",
		unexaminedRemedy, values{"reference": reference})[0]
	logged.Check, logged.Level = f.Check, f.Level
	return logged
}

// values are those of a finding, by the names that stand for them, in braces, in its sentences.
type values map[string]string

func warn(rule, says, remedy string, v values) []Finding { return finding(Warn, rule, says, remedy, v) }

func fail(rule, says, remedy string, v values) []Finding { return finding(Fail, rule, says, remedy, v) }

func finding(level Level, rule, says, remedy string, v values) []Finding {
	var pairs []string
	for name, value := range v {
		pairs = append(pairs, "{"+name+"}", value)
	}
	fill := strings.NewReplacer(pairs...) // in one pass: braces in a value stay
	return []Finding{{Level: level, Rule: rule, Says: fill.Replace(says), Remedy: fill.Replace(remedy), Args: v}}
}

// ErrUnfit means that the database must not be used as it is.
var ErrUnfit = errors.New("the database is not fit for the event bus")

// Start examines the database before it is used. It logs every WARN, and returns an error that
// names every FAIL with its remedy.
func Start(ctx context.Context, db *bun.DB, cfg Config, logger *slog.Logger) error {
	r, err := Examine(ctx, db, cfg)
	if err != nil {
		return err
	}
	if logger == nil {
		logger = slog.Default()
	}
	var bad []error
	for _, f := range r {
		switch f.Level {
		case Fail:
			bad = append(bad, fmt.Errorf("%s: %s: %s", f.Check, f.Says, f.Remedy))
		case Warn:
			logger.WarnContext(ctx, "doctor", "check", f.Check, "says", f.Says, "remedy", f.Remedy)
		case OK:
		}
	}
	if len(bad) > 0 {
		return fmt.Errorf("%w: %w", ErrUnfit, errors.Join(bad...))
	}
	return nil
}

// texts reads rows of text.
func (x *exam) texts(ctx context.Context, query string, columns int, args ...any) (out [][]string, err error) {
	rows, err := x.db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		cells, at := make([]sql.NullString, columns), make([]any, columns)
		for i := range cells {
			at[i] = &cells[i]
		}
		if err := rows.Scan(at...); err != nil {
			return nil, err
		}
		line := make([]string, columns)
		for i, c := range cells {
			line[i] = c.String
		}
		out = append(out, line)
	}
	return out, rows.Err()
}

// one reads one row of text.
func (x *exam) one(ctx context.Context, query string, columns int) ([]string, error) {
	rows, err := x.texts(ctx, query, columns)
	if err != nil {
		return nil, err
	}
	if len(rows) != 1 {
		return nil, fmt.Errorf("%d rows instead of one", len(rows))
	}
	return rows[0], nil
}
