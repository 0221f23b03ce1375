package cli

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/bluecone-go/bluecone/dburl"
	"github.com/bluecone-go/bluecone/ops"
)

// publish saves an event that should have been saved.
func (a *app) publish() *cobra.Command {
	var m ops.Manual
	var from string
	var sample bool
	cmd := &cobra.Command{
		Use: "publish --type EVENT-TYPE --payload JSON|@FILE|-", Short: "Save an event that should have been saved", Args: takes(),
		Long: `Saves an event by hand: decoded and validated as if the program had saved it, under its deterministic id if its
type has an idempotency key, so that repeating it changes nothing. Only types that the program declares
publishable can be published (ops.Config.Publishable), so this is for the command inside your own program.`,
		Example: `  shop ops publish --type order.paid --payload '{"orderId":"42","cents":500}' --reason "lost in INC-1234"
  shop ops publish --type order.paid --sample > event.json
  shop ops publish --type order.paid --payload @event.json --dry-run`,
	}
	cmd.Flags().StringVar(&m.EventType, "type", "", "event type (required)")
	cmd.Flags().StringVar(&from, "payload", "", "the event as JSON; @FILE reads a file, - standard input (required)")
	cmd.Flags().Int64Var(&m.TenantID, "tenant", 0, "tenant id")
	cmd.Flags().Int64Var(&m.StoreID, "store", 0, "store id")
	cmd.Flags().BoolVar(&sample, "sample", false, "print an empty payload of --type, to fill in, and save nothing")
	a.completeWith(cmd, "type", func(_ context.Context, o *ops.Ops) ([]string, error) { return o.PublishableTypes(), nil })
	atLeast(cmd, "tenant", &m.TenantID, 0)
	atLeast(cmd, "store", &m.StoreID, 0)
	w := &write{}
	w.flags(cmd)
	before(cmd, func(cmd *cobra.Command) (err error) {
		if m.EventType == "" {
			return usage("%s: --type is missing", cmd.CommandPath())
		}
		if sample {
			return nil
		}
		if m.Payload, err = readPayload(cmd, from); err != nil || w.dryRun {
			return err
		}
		return w.demand(cmd, "")
	})
	cmd.RunE = a.run(func(ctx context.Context, c *call) error {
		if err := c.isPublishable(m.EventType); err != nil {
			return err
		}
		if sample {
			return c.sample(m.EventType)
		}
		return c.publish(ctx, w, m)
	})
	return cmd
}

// sample prints an empty payload of a type.
func (c *call) sample(eventType string) error {
	text, err := c.Ops.Sample(eventType)
	if err != nil {
		return err
	}
	return printJSON(c.cmd.OutOrStdout(), json.RawMessage(text))
}

// publish saves an event, or says what would be saved.
func (c *call) publish(ctx context.Context, w *write, m ops.Manual) error {
	p, err := c.Ops.CheckManual(ctx, m)
	if err == nil && !w.dryRun {
		p, err = c.Ops.Publish(ctx, w.operation(), m)
	}
	if err != nil {
		return refused(ctx, err)
	}
	return c.published(w, p)
}

// isPublishable refuses a type that this program does not declare publishable.
func (c *call) isPublishable(eventType string) error {
	types := c.Ops.PublishableTypes()
	switch {
	case len(types) == 0:
		return &said{text: "this program declares no event type publishable: use the command inside your own program, " +
			"with ops.Config.Publishable"}
	case !slices.Contains(types, eventType):
		return usage("--type %q is not publishable%s (publishable are %s)", eventType, closeTo(eventType, types, ""),
			strings.Join(types, ", "))
	}
	return nil
}

// refused is the error for an event that is not accepted.
func refused(ctx context.Context, err error) error {
	if ctx.Err() == nil && !dburl.IsOfDatabase(err) && !errors.Is(err, context.DeadlineExceeded) {
		return usage("--payload: %s", err)
	}
	return err
}

func (c *call) published(w *write, p ops.Published) error {
	if c.format == "json" || c.format == "csv" {
		v := view{columns: []string{"eventId", "eventType", "aggregateType", "aggregateId", "idempotencyKey", "exists", "created"}}
		v.add(p.EventID, p.EventType, p.AggregateType, p.AggregateID, p.IdempotencyKey, p.Exists, p.Created)
		return c.print(v, p)
	}
	what := p.EventType + " of " + p.AggregateType + " " + p.AggregateID
	switch {
	case p.Exists && !p.Created:
		return c.done(w, "publish", p.EventID, "%s exists already as %s: nothing is saved", what, p.EventID)
	case p.EventID == "":
		return c.done(w, "publish", "", "%s under a new id; its type has no idempotency key, so to repeat it makes another", what)
	}
	return c.done(w, "publish", p.EventID, "%s is saved as %s", what, p.EventID)
}

// readPayload takes the JSON from the flag, a file or standard input.
func readPayload(cmd *cobra.Command, from string) (string, error) {
	text := []byte(from)
	var err error
	switch file, isFile := strings.CutPrefix(from, "@"); {
	case from == "":
		return "", usage("%s: --payload is missing", cmd.CommandPath())
	case from == "-":
		text, err = io.ReadAll(io.LimitReader(cmd.InOrStdin(), maxInput))
	case isFile:
		if text, err = os.ReadFile(file); err != nil {
			return "", usage("--payload %s: %s", from, errors.Unwrap(err))
		}
	}
	if err != nil {
		return "", err
	}
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		return "", usage("--payload: it is no JSON: %s", err)
	}
	return string(text), nil
}
