package cli

import (
	"context"

	"github.com/spf13/cobra"
)

// inboxes lists what has come from message brokers.
func (a *app) inboxes() *cobra.Command {
	return group("inboxes", "List what has come from message brokers", &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "What each partition has brought, and which instance has it", Args: takes(),
		Long: `What each partition of a message broker has brought: messages that became events, those that came again, and
those that nobody can read, which are DEAD events of the type inbox.undecodable. Relays are consumers: see "consumers list".`,
		Example: "  bluecone inboxes list\n  bluecone events list --type inbox.undecodable --status DEAD",
		RunE: a.run(func(ctx context.Context, c *call) error {
			rows, err := c.Ops.Inboxes(ctx)
			if err != nil {
				return err
			}
			v := view{columns: []string{"inbox", "partition", "landed", "duplicates", "undecodable", "offset", "instance", "seenAt"}}
			for _, i := range rows {
				v.add(i.Name, i.Partition, i.Landed, i.Duplicates, i.Undecodable, i.Offset, i.Owner, i.Seen)
			}
			return c.page(v, notNil(rows), "", "message has come by a broker", len(rows))
		}),
	})
}
