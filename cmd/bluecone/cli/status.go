package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/ops"
	"github.com/bluecone-go/bluecone/outbox"
)

// errUnhealthy says that something waits for somebody.
var errUnhealthy = errors.New("the deployment is not healthy: see the first line")

// status shows the deployment in one look.
func (a *app) status() *cobra.Command {
	var watch, exitCode bool
	every := 2 * time.Second
	cmd := &cobra.Command{
		Use: "status", Short: "The deployment in one look", Args: takes(),
		Long: `The deployment in one look: whether anything is wrong, what is open, and what each consumer does.
SENT events and successful deliveries are not counted.`,
		Example: `  bluecone status
  bluecone status --watch --interval 5s
  bluecone status --exit-code --output json | jq .health`,
		RunE: a.run(func(ctx context.Context, c *call) error {
			if watch {
				return c.watch(ctx, every)
			}
			o, err := c.Ops.Overview(ctx)
			if err != nil {
				return err
			}
			if err := c.overview(o); err != nil {
				return err
			}
			if exitCode && o.Health.Level != ops.OK && o.Health.Level != ops.Info {
				return errUnhealthy
			}
			return nil
		}),
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "show it again and again, until you press Ctrl-C")
	cmd.Flags().DurationVar(&every, "interval", every, "how often --watch looks, 1s or more")
	cmd.Flags().BoolVar(&exitCode, "exit-code", false, "exit with 1 if something is wrong")
	atLeast(cmd, "interval", &every, time.Second)
	before(cmd, func(*cobra.Command) error {
		switch {
		case watch && a.format == "csv":
			return usage("--watch does not go with --output csv: use table or json")
		case watch && exitCode:
			return usage("--watch does not go with --exit-code: it has no end")
		}
		return nil
	})
	return cmd
}

// watch shows the overview until ctx ends. A look that fails is told, and the next one tried.
func (c *call) watch(ctx context.Context, every time.Duration) error {
	_, screen := width(c.cmd.OutOrStdout())
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		o, err := c.Ops.Overview(ctx)
		switch {
		case ctx.Err() != nil:
			return nil // that is how watching ends
		case err != nil:
			Explain(c.cmd.ErrOrStderr(), c.cmd.Root().Name(), err)
		default:
			if screen && c.format != "json" {
				if _, err := fmt.Fprint(c.cmd.OutOrStdout(), "\x1b[H\x1b[2J"); err != nil {
					return err
				}
			}
			if err := c.overview(o); err != nil {
				return err
			}
			if err := c.say(""); err != nil {
				return err
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (c *call) overview(o ops.Overview) error {
	if c.format == "json" || c.format == "csv" {
		return c.print(consumersView(o.Consumers), o)
	}
	lines := []string{
		fmt.Sprintf("%s: %s   (%s UTC)", o.Health.Level, o.Health.Says, stamp(o.At)),
		"events      " + tally(o.Events, outbox.StatusNew, outbox.StatusScheduled, outbox.StatusDispatching, outbox.StatusFailed,
			outbox.StatusDead) + "   oldest " + span(o.Oldest),
		"deliveries  " + tally(o.Deliveries, consumelog.Pending, consumelog.Processing, consumelog.Failed, consumelog.Dead),
	}
	if o.Health.Remedy != "" {
		lines = append(lines[:1], append([]string{"  " + o.Health.Remedy}, lines[1:]...)...)
	}
	if len(o.Series.Saved) > 0 {
		lines = append(lines, fmt.Sprintf("rates       %.1f events saved/s, %.1f deliveries done/s", o.SavedRate, o.DoneRate))
	}
	lines = append(lines, "instances   "+present(o), "")
	for _, line := range lines {
		if err := c.say("%s", line); err != nil {
			return err
		}
	}
	if len(o.Consumers) == 0 {
		return c.say("No instance has announced a consumer yet.")
	}
	if err := c.print(consumersView(o.Consumers), nil); err != nil {
		return err
	}
	if len(o.Dead) == 0 {
		return nil
	}
	if err := c.title("What fails most (more: dead list)"); err != nil {
		return err
	}
	return c.print(deadView(o.Dead), nil)
}

// present says which instances are alive, or which was last.
func present(o ops.Overview) string {
	var alive []string
	var last ops.Instance
	for _, i := range o.Instances {
		if i.Alive {
			alive = append(alive, i.Name)
		}
		if i.Seen.After(last.Seen) {
			last = i
		}
	}
	switch {
	case len(alive) > 0:
		return fmt.Sprintf("%d alive: %s", len(alive), strings.Join(alive, ", "))
	case last.Name != "":
		return fmt.Sprintf("none alive, the last was %s, %s ago", last.Name, span(o.At.Sub(last.Seen)))
	}
	return "none alive"
}

// tally lists how many there are in each state.
func tally[S ~string](counts map[S]ops.Count, states ...S) string {
	words := make([]string, len(states))
	for i, s := range states {
		words[i] = string(s) + " " + count(counts[s])
	}
	return strings.Join(words, "  ")
}
