package cli

import (
	"context"

	"github.com/spf13/cobra"
)

// reservations lists events that producers have reserved in the ledger.
func (a *app) reservations() *cobra.Command {
	return group("reservations", "List events that are reserved in the ledger", &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "What producers have reserved, and what has become of it", Args: takes(),
		Long: `Events that producers have reserved in the ledger: those that are neither confirmed nor canceled, the next to be asked
about first, then those that ended last. "over" means that the time to live is over, and that the producer has not said
what became of the event; why not stands under "lastError". A consumer of the ledger is a consumer: see "consumers list".`,
		Example: "  bluecone reservations list\n  bluecone trace EVENT-ID",
		RunE: a.run(func(ctx context.Context, c *call) error {
			rows, err := c.Ops.Reservations(ctx)
			if err != nil {
				return err
			}
			v := view{columns: []string{
				"eventId", "eventType", "producer", "state", "createdAt", "expiresAt", "over", "checks", "nextCheckAt", "checkHost", "lastError",
			}}
			for _, r := range rows {
				v.add(r.EventID, r.EventType, r.Producer, r.State, r.CreatedAt, r.ExpiresAt, r.Over, r.Checks, r.NextCheck, r.CheckHost, r.LastError)
			}
			return c.page(v, notNil(rows), "", "event is reserved", len(rows))
		}),
	})
}
