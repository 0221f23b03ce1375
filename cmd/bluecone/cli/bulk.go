package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/bluecone-go/bluecone/ops"
)

// bulkCommands are the commands about bulk operations.
type bulkCommands struct{ *app }

// bulk looks after bulk operations.
func (a bulkCommands) bulk() *cobra.Command {
	return group("bulk", "List, show, cancel and resume bulk operations", a.bulkList(), a.bulkShow(),
		a.bulkSteer("cancel", "Stop a bulk operation; what is done stays done", (*ops.Ops).CancelBulk),
		a.bulkSteer("resume", "Go on with a bulk operation that was canceled or has failed", (*ops.Ops).ResumeBulk))
}

func (a bulkCommands) bulkList() *cobra.Command {
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "Bulk operations, newest first", Args: takes(),
		Example: "  bluecone bulk list",
	}
	p := addPaging(cmd)
	cmd.RunE = a.run(func(ctx context.Context, c *call) error {
		page, err := pages(p, func(cursor string, limit int) (ops.Page[ops.Bulk], error) { return c.Ops.Bulks(ctx, cursor, limit) })
		if err != nil {
			return err
		}
		return c.page(bulkView(page.Rows), page, page.Next, "bulk operation", len(page.Rows))
	})
	return cmd
}

func bulkView(all []ops.Bulk) view {
	v := view{columns: []string{
		"id", "action", "state", "total", "seen", "done", "passed", "consumer", "actor", "createdAt", "finishedAt",
		"reason", "error",
	}}
	for _, b := range all {
		v.add(b.ID, b.Action, b.State, b.Total, b.Seen, b.Done, b.Passed, b.Consumer, b.Actor, b.CreatedAt, b.FinishedAt, b.Reason, b.Error)
	}
	return v
}

func (a bulkCommands) bulkShow() *cobra.Command {
	var wait bool
	cmd := &cobra.Command{
		Use: "show ID", Short: "How far a bulk operation is", Args: takes("id of the bulk operation"), ValidArgsFunction: a.completeBulks,
		Example: "  bluecone bulk show 0193… --wait",
		RunE: a.run(func(ctx context.Context, c *call) error {
			b, err := c.Ops.Bulk(ctx, c.args[0])
			if err == nil && wait {
				b, err = c.follow(ctx, b)
			}
			if err != nil {
				return err
			}
			return c.print(bulkView([]ops.Bulk{b}), b)
		}),
	}
	cmd.Flags().BoolVar(&wait, "wait", false, "work on it and show the progress until it has ended")
	return cmd
}

func (a bulkCommands) bulkSteer(verb, short string, do func(*ops.Ops, context.Context, ops.Operation, string) error) *cobra.Command {
	cmd := &cobra.Command{
		Use: verb + " ID", Short: short, Args: takes("id of the bulk operation"), ValidArgsFunction: a.completeBulks,
		Example: "  bluecone bulk " + verb + " 0193… --reason INC-1234",
	}
	w := addWrite(cmd)
	cmd.RunE = a.run(func(ctx context.Context, c *call) error {
		b, err := c.Ops.Bulk(ctx, c.args[0])
		if err != nil {
			return err
		}
		if possible := (b.State == ops.BulkRunning) == (verb == "cancel") && b.State != ops.BulkDone; !possible {
			return &said{text: fmt.Sprintf("the bulk operation %s is %s: there is nothing to %s", b.ID, b.State, verb)}
		}
		if !w.dryRun {
			if err := do(c.Ops, ctx, w.operation(), b.ID); err != nil {
				return err
			}
		}
		return c.done(w, verb+" bulk", b.ID, "%s %s: %d of %s done", b.Action, b.ID, b.Done, count(b.Total))
	})
	return cmd
}

// pace is how a bulk operation is carried out.
type pace struct {
	rate   float64
	spread time.Duration
	detach bool
}

func addPace(cmd *cobra.Command) *pace {
	p := &pace{}
	cmd.Flags().Float64Var(&p.rate, "rate", 100, "at most so many events per second")
	cmd.Flags().BoolVar(&p.detach, "detach", false, "do not wait for the end: leave it to the instances of the deployment")
	before(cmd, func(*cobra.Command) error {
		if !(p.rate >= 0.1 && p.rate <= 10_000) { // NaN is neither
			return usage("--rate %v: it must be between 0.1 and 10000 events per second", p.rate)
		}
		return nil
	})
	return p
}

// bulk starts a bulk operation and follows it, or counts what it would be about.
func (c *call) bulk(ctx context.Context, w *write, p *pace, b ops.NewBulk) error {
	b.Rate, b.Spread = p.rate, p.spread
	n, err := c.Ops.DryRun(ctx, b)
	switch {
	case err != nil:
		return err
	case n.Count == 0 && !n.More:
		return notFound("nothing to %s: no event is in a state that this is for", b.Action)
	case w.dryRun:
		return c.done(w, string(b.Action), b.Consumer, "%s %s", b.Action, plural(n.Count, "event")+map[bool]string{true: " or more"}[n.More])
	}
	started, err := c.Ops.StartBulk(ctx, w.operation(), b)
	if err != nil {
		return err
	}
	if p.detach {
		return c.print(bulkView([]ops.Bulk{started}), started)
	}
	ended, err := c.follow(ctx, started)
	if err != nil {
		return err
	}
	if err := c.print(bulkView([]ops.Bulk{ended}), ended); err != nil {
		return err
	}
	if ended.State != ops.BulkDone {
		return &said{text: fmt.Sprintf("the bulk operation %s is %s after %d of %s: %s", ended.ID, ended.State, ended.Seen, count(ended.Total),
			ended.Error)}
	}
	return nil
}

const glance = 250 * time.Millisecond

// follow works on a bulk operation and shows its progress until it has ended.
func (c *call) follow(ctx context.Context, b ops.Bulk) (_ ops.Bulk, err error) {
	working, stop := context.WithCancel(ctx)
	worked := make(chan error, 1)
	go func() { worked <- c.Ops.Run(working) }()
	defer func() {
		stop()
		err = errors.Join(err, <-worked)
	}()
	bar := newProgress(c.cmd.ErrOrStderr(), string(b.Action), b.Total)
	defer bar.end()
	look := time.NewTicker(glance)
	defer look.Stop()
	for b.State == ops.BulkRunning {
		select {
		case <-look.C:
		case <-ctx.Done():
			bar.end()
			c.note("%s goes on in the background, on any instance that is alive: see 'bulk show %s'", b.Action, b.ID)
			return b, ctx.Err()
		}
		now, err := c.Ops.Bulk(ctx, b.ID)
		if err != nil && ctx.Err() == nil {
			return b, err
		}
		if err == nil {
			b = now
			bar.set(b.Seen)
		}
	}
	return b, nil
}
