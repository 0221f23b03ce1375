package cli

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/bluecone-go/bluecone/ops"
)

// patience is how long a completion may take: somebody waits at the prompt.
const patience = 3 * time.Second

// complete offers fixed words as values of a flag, and never the names of files.
func complete(cmd *cobra.Command, flag string, words ...string) {
	must(cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)))
}

// must panics if a flag has been completed that does not exist, which is a mistake in this package.
func must(err error) {
	if err != nil {
		panic("cli: " + err.Error())
	}
}

// ask opens the deployment for a completion. What goes wrong there is nothing to tell at a prompt.
func (a *app) ask(
	cmd *cobra.Command, already []string, prefix string, find func(ctx context.Context, o *ops.Ops) ([]string, error),
) ([]string, cobra.ShellCompDirective) {
	if len(already) > 0 || a.cfg.Open == nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), patience)
	defer cancel()
	d, err := a.cfg.Open(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer func() { _ = d.DB.Close() }()
	words, err := find(ctx, d.Ops)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var fit []string
	for _, w := range words {
		if strings.HasPrefix(w, prefix) {
			fit = append(fit, clean(w))
		}
	}
	return fit, cobra.ShellCompDirectiveNoFileComp
}

func (a *app) completeConsumers(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	return a.ask(cmd, args, prefix, func(ctx context.Context, o *ops.Ops) ([]string, error) {
		all, err := o.Consumers(ctx)
		var found []string
		for _, c := range all {
			found = append(found, c.Name)
		}
		return found, err
	})
}

func (a *app) completeJobs(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	return a.ask(cmd, args, prefix, func(ctx context.Context, o *ops.Ops) ([]string, error) {
		all, err := o.Jobs(ctx)
		var found []string
		for _, j := range all {
			found = append(found, j.Code)
		}
		return found, err
	})
}

func (a *app) completeBulks(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	return a.ask(cmd, args, prefix, func(ctx context.Context, o *ops.Ops) ([]string, error) {
		page, err := o.Bulks(ctx, "", 20)
		var found []string
		for _, b := range page.Rows {
			found = append(found, b.ID)
		}
		return found, err
	})
}

// completeConsumerFlag offers consumers as values of --consumer.
func (a *app) completeConsumerFlag(cmd *cobra.Command) {
	must(cmd.RegisterFlagCompletionFunc("consumer", func(cmd *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
		return a.completeConsumers(cmd, nil, prefix)
	}))
}

// completeTypes offers the event types that consumers take as values of --type.
func (a *app) completeTypes(cmd *cobra.Command) {
	a.completeWith(cmd, "type", func(ctx context.Context, o *ops.Ops) ([]string, error) {
		all, err := o.Consumers(ctx)
		var found []string
		for _, c := range all {
			found = append(found, c.Types...)
		}
		return unique(found), err
	})
}

func (a *app) completeWith(cmd *cobra.Command, flag string, find func(ctx context.Context, o *ops.Ops) ([]string, error)) {
	must(cmd.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
		return a.ask(cmd, nil, prefix, find)
	}))
}
