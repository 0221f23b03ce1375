package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/ops"
)

// brokers lists relays and inboxes.
func (a *app) brokers() *cobra.Command {
	return group("brokers", "List relays, inboxes, and what message brokers have brought",
		a.brokersList(), a.brokersBrought(), a.brokersAgain())
}

func (a *app) brokersList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "What relays and inboxes know of their brokers", Args: takes(),
		Long: `What each instance of a relay or an inbox knows of its message broker: whether it answers, how many messages of a relay are
unconfirmed and may be, how many messages the broker has for an inbox or wait for a relay ("lag", -1 where nobody knows), and the
last error. Instances write it every few seconds; GONE is one that has not for 45 seconds. A relay is a consumer: see "consumers list".`,
		Example: "  bluecone brokers list",
		RunE: a.run(func(ctx context.Context, c *call) error {
			found, err := c.Ops.Brokers(ctx)
			if err != nil {
				return err
			}
			v := view{columns: []string{
				"role", "name", "broker", "state", "unconfirmed", "window", "lag", "instance", "seenAt", "lastErrorAt", "lastError",
			}}
			for _, l := range found.Links {
				v.add(l.Role, l.Name, l.Broker, l.State, l.Unconfirmed, l.Window, l.Lag, l.Instance, l.Seen, l.LastErrorAt, l.LastError)
			}
			return c.page(v, notNil(found.Links), "", "relay or inbox runs", len(found.Links))
		}),
	}
}

func (a *app) brokersBrought() *cobra.Command {
	return &cobra.Command{
		Use: "brought", Short: "What each partition has brought, and which instance has it", Args: takes(),
		Long: `What each partition of a message broker has brought: messages that became events, those that came again, and
those that nobody can read, which are DEAD events of the type inbox.undecodable. What was landed again by hand is in the row "again".`,
		Example: "  bluecone brokers brought\n  bluecone events list --type inbox.undecodable --status DEAD",
		RunE: a.run(func(ctx context.Context, c *call) error {
			found, err := c.Ops.Brokers(ctx)
			if err != nil {
				return err
			}
			v := view{columns: []string{"inbox", "partition", "landed", "duplicates", "undecodable", "offset", "instance", "seenAt"}}
			for _, i := range found.Partitions {
				v.add(i.Name, i.Partition, i.Landed, i.Duplicates, i.Undecodable, i.Offset, i.Owner, i.Seen)
			}
			return c.page(v, notNil(found.Partitions), "", "message has come by a broker", len(found.Partitions))
		}),
	}
}

func (a *app) brokersAgain() *cobra.Command {
	cmd := &cobra.Command{
		Use: "again EVENT-ID", Short: "Land a message again that could not be read, after a fix", Args: takes("event id"),
		ValidArgsFunction: cobra.NoFileCompletions,
		Long: `Has an inbox read a message once more that has landed as an event of the type inbox.undecodable, as it would read one that
comes now. Its event comes behind all that have landed meanwhile; several messages land in the order in which they came. If the
inbox still cannot read it, the event is DEAD again with the reason. For all of them: dead retry --consumer INBOX.`,
		Example: `  bluecone brokers again 0193… --reason "the consumer knows the new type"`,
	}
	iv := intervention{
		verb: "land again", past: "is landed again within seconds", from: []consumelog.Status{consumelog.Dead}, only: undecodable,
	}
	return eventCommands{a}.intervene(cmd, iv, &[]string{}, func(ctx context.Context, c *call, op ops.Operation) error {
		return c.Ops.Retry(ctx, op, c.args[0])
	})
}

// undecodable is the type of the events as which messages land that an inbox cannot read.
const undecodable = "inbox.undecodable"
