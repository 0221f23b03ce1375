package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/bluecone-go/bluecone/ops"
)

// jobCommands are the commands about jobs.
type jobCommands struct{ *app }

// jobs lists and runs the scheduled jobs.
func (a jobCommands) jobs() *cobra.Command {
	return group("jobs", "List and run scheduled jobs", a.jobsList(), a.jobsRun())
}

func (a jobCommands) jobsList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "The scheduled jobs, and how they went last", Args: takes(), Example: "  bluecone jobs list",
		RunE: a.run(func(ctx context.Context, c *call) error {
			jobs, err := c.Ops.Jobs(ctx)
			if err != nil {
				return err
			}
			v := view{columns: []string{"job", "schedule", "here", "running", "nextAt", "lastAt", "lastStatus", "took", "counts", "error"}}
			for _, j := range jobs {
				var last ops.JobRun
				if len(j.Runs) > 0 {
					last = j.Runs[0]
				}
				v.add(j.Code, j.Words, j.Here, j.Running, j.NextDue, j.LastStarted, j.LastStatus, last.Duration, tallied(last.Counts), last.Error)
			}
			return c.page(v, notNil(jobs), "", "job has ever run", len(jobs))
		}),
	}
}

func tallied(counts map[string]int64) string {
	var words []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		words = append(words, fmt.Sprintf("%s %d", name, counts[name]))
	}
	return strings.Join(words, ", ")
}

func (a jobCommands) jobsRun() *cobra.Command {
	cmd := &cobra.Command{
		Use: "run JOB", Short: "Run a job now, out of turn", Args: takes("code of the job"), ValidArgsFunction: a.completeJobs,
		Long: `Runs a job of this program now, and waits for it. A job of other instances is asked for: the instance that
has it runs it when it looks next.`,
		Example: "  bluecone jobs run lock_timeout_reaper --reason INC-1234",
	}
	w := addWrite(cmd)
	cmd.RunE = a.run(func(ctx context.Context, c *call) error {
		code := c.args[0]
		jobs, err := c.Ops.Jobs(ctx)
		if err != nil {
			return err
		}
		var known []string
		for _, j := range jobs {
			known = append(known, j.Code)
		}
		i := slices.Index(known, code)
		switch {
		case i < 0:
			return notFound("the job %q is unknown%s (see 'jobs list')", code, closeTo(code, known, ""))
		case w.dryRun && jobs[i].Here:
			return c.done(w, "run job", code, "run %s in this process", code)
		case w.dryRun:
			return c.done(w, "run job", code, "ask the instance that has %s to run it", code)
		}
		return c.runJob(ctx, w, code)
	})
	return cmd
}

func (c *call) runJob(ctx context.Context, w *write, code string) error {
	var counts map[string]int64
	var ran bool
	err := c.meanwhile("run "+code, func() (err error) {
		counts, ran, err = c.Ops.RunJob(ctx, w.operation(), code)
		return err
	})
	switch {
	case err != nil:
		return err
	case !ran:
		return c.done(w, "run job", code, "%s is not of this program: the instance that has it is asked to run it (see 'jobs list')", code)
	case len(counts) == 0:
		return c.done(w, "run job", code, "%s has run", code)
	}
	return c.done(w, "run job", code, "%s has run: %s", code, tallied(counts))
}
