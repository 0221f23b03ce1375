package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/bluecone-go/bluecone/ops"
)

// audit shows who did what, and why.
func (a *app) audit() *cobra.Command {
	return group("audit", "Who did what, and why", a.auditList())
}

func (a *app) auditList() *cobra.Command {
	var target string
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "What operators did, newest first", Args: takes(),
		Example: "  bluecone audit list --target 0193…",
	}
	cmd.Flags().StringVar(&target, "target", "", "only what was done to this event, consumer, job or bulk operation")
	p := addPaging(cmd)
	cmd.RunE = a.run(func(ctx context.Context, c *call) error {
		page, err := pages(p, func(cursor string, limit int) (ops.Page[ops.AuditRow], error) {
			return c.Ops.Audit(ctx, ops.AuditQuery{Target: target, Cursor: cursor, Limit: limit})
		})
		if err != nil {
			return err
		}
		v := view{columns: []string{"at", "actor", "action", "target", "reason", "details"}}
		for _, r := range page.Rows {
			v.add(r.At, r.Actor, r.Action, r.Target, r.Reason, r.Details)
		}
		return c.page(v, page, page.Next, "audit entry", len(page.Rows))
	})
	return cmd
}
