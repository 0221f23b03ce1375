package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/bluecone-go/bluecone/consistency"
	"github.com/bluecone-go/bluecone/doctor"
	"github.com/bluecone-go/bluecone/invariant"
)

var (
	errBroken = errors.New("something is not as it must be: see the lines above")
	errUnfit  = errors.New("the database is not fit: see the lines with FAIL")
)

// check looks for what is lost, doubled or out of turn.
func (a *app) check() *cobra.Command {
	return group("check", "Look for what is lost, doubled or out of turn", a.checkRun())
}

// checked is what was found, as JSON.
type checked struct {
	DryRun     bool                  `json:"dryRun"`
	Violations []invariant.Violation `json:"violations"`
	Checks     consistency.Report    `json:"checks"`
	Repaired   map[string]int64      `json:"repaired,omitempty"`
}

func (a *app) checkRun() *cobra.Command {
	var atRest bool
	cmd := &cobra.Command{
		Use: "run", Short: "Check the invariants of the bus, and the facts that lost their event", Args: takes(),
		Long: `Checks what must be true of the tables of the bus, and looks for facts that lost their event. If this program
has the consistency job, the job is run and repairs them: that needs --reason, and --dry-run leaves it
out. Otherwise nothing is written. The exit status is 1 if something remains that is not as it must be.`,
		Example: `  bluecone check run --dry-run
  bluecone check run --quiet --reason "after the restore"`,
	}
	cmd.Flags().BoolVar(&atRest, "quiet", false, "nothing is under way: demand that every event has come to its end")
	w := &write{}
	cmd.Flags().BoolVar(&w.dryRun, "dry-run", false, "change nothing, only say what is found")
	w.add(cmd, "why; kept in the audit log (required where the job repairs)")
	cmd.RunE = a.run(func(ctx context.Context, c *call) error {
		repairs, err := c.repairs(ctx)
		if err != nil {
			return err
		}
		if repairs && !w.dryRun {
			if err := w.demand(cmd, ""); err != nil {
				return err
			}
		}
		found := checked{DryRun: w.dryRun}
		err = c.meanwhile("check", func() error { return c.examine(ctx, &found, atRest, repairs && !w.dryRun, w) })
		if err != nil {
			return err
		}
		return c.checked(found)
	})
	return cmd
}

// repairs tells whether this program has the consistency job.
func (c *call) repairs(ctx context.Context) (bool, error) {
	jobs, err := c.Ops.Jobs(ctx)
	for _, j := range jobs {
		if j.Here && j.Code == consistency.JobCode {
			return true, err
		}
	}
	return false, err
}

// examine repairs first, and then looks at what is left.
func (c *call) examine(ctx context.Context, found *checked, atRest, repair bool, w *write) (err error) {
	if repair {
		if found.Repaired, _, err = c.Ops.RunJob(ctx, w.operation(), consistency.JobCode); err != nil {
			return err
		}
	}
	if found.Violations, err = invariant.Check(ctx, c.DB, invariant.Config{Quiet: atRest}); err != nil {
		return err
	}
	found.Violations = notNil(found.Violations)
	looker, err := consistency.New(c.DB, c.Consistency, append(consistency.BuiltIn(), c.Checks...)...)
	if err != nil {
		return err
	}
	found.Checks, err = looker.Look(ctx)
	return err
}

// checked prints what was found, and answers an error if it is anything.
func (c *call) checked(found checked) error {
	v := view{columns: []string{"check", "eventId", "consumer", "says"}}
	for _, one := range found.Violations {
		v.add(one.Invariant, one.EventID, one.Consumer, one.Says)
	}
	for _, name := range slices.Sorted(maps.Keys(found.Checks)) {
		for _, key := range found.Checks[name].Keys {
			v.add(name, "", "", key)
		}
		if r := found.Checks[name]; r.Found > len(r.Keys) {
			v.add(name, "", "", fmt.Sprintf("and %d more", r.Found-len(r.Keys)))
		}
	}
	if len(found.Repaired) > 0 {
		c.note("The job %s: %s", consistency.JobCode, tallied(found.Repaired))
	}
	if len(v.rows) > 0 || c.format == "json" || c.format == "csv" {
		if err := c.print(v, found); err != nil {
			return err
		}
	}
	if len(v.rows) > 0 {
		return errBroken
	}
	return c.say("Every invariant holds, and %s found nothing: %s.", plural(int64(len(found.Checks)), "check"),
		strings.Join(slices.Sorted(maps.Keys(found.Checks)), ", "))
}

// doctor examines the database.
func (a *app) doctor() *cobra.Command {
	return &cobra.Command{
		Use: "doctor", Short: "Say whether the database is fit, and what to fix", Args: takes(),
		Long: "Examines server, tables and rows, and says what is wrong and what to do about it. It only reads. The exit\nstatus is 1 if " +
			"anything is a FAIL: then the event bus must not run on it.",
		Example: "  bluecone doctor\n  bluecone doctor --output json | jq '.[] | select(.level != \"OK\")'",
		RunE: a.run(func(ctx context.Context, c *call) error {
			var report doctor.Report
			err := c.meanwhile("examine", func() (err error) {
				report, err = c.Ops.DoctorWithErrors(ctx)
				return err
			})
			if err != nil {
				return err
			}
			v := view{columns: []string{"level", "check", "says", "remedy"}}
			for _, f := range report {
				v.add(f.Level, f.Check, f.Says, f.Remedy)
			}
			if err := c.print(v, notNil(report)); err != nil {
				return err
			}
			if report.Worst() == doctor.Fail {
				return errUnfit
			}
			return nil
		}),
	}
}
