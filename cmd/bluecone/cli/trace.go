package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/bluecone-go/bluecone/ops"
)

// trace tells everything about a business key.
func (a *app) trace() *cobra.Command {
	return &cobra.Command{
		Use: "trace KEY", Short: "Everything about an order, an event, an idempotency key or a trace", Args: takes("key"),
		ValidArgsFunction: cobra.NoFileCompletions,
		Long: `Finds the events of a business key, and tells what they caused: what is wrong and what to do about it,
who has got which event, and what happened when. KEY is an aggregate id (an order number, say), an
event id, an idempotency key or a trace id.`,
		Example: "  bluecone trace 42",
		RunE: a.run(func(ctx context.Context, c *call) error {
			s, err := c.Ops.Trace(ctx, c.args[0])
			switch {
			case ExitCode(err) == exitNotFound:
				return notFound("nobody knows the key %q: no aggregate, event, idempotency key or trace is called so", c.args[0])
			case err != nil:
				return err
			case c.format == "json" || c.format == "csv":
				return c.print(momentsView(s.Moments), s)
			}
			return c.story(s)
		}),
	}
}

// story prints diagnosis, matrix, timeline and the sections of the host.
func (c *call) story(s ops.Story) error {
	for _, f := range s.Findings {
		if err := c.finding(f); err != nil {
			return err
		}
	}
	parts := []struct {
		title string
		view  view
	}{{"", matrix(s)}, {"What happened", momentsView(s.Moments)}}
	for _, section := range s.Sections {
		v := view{columns: []string{"name", "value"}}
		for _, f := range section.Rows {
			v.add(f.Name, f.Value)
		}
		parts = append(parts, struct {
			title string
			view  view
		}{section.Title, v})
	}
	for _, p := range parts {
		if len(p.view.rows) == 0 {
			continue
		}
		if err := c.title(p.title); err != nil {
			return err
		}
		if err := c.print(p.view, nil); err != nil {
			return err
		}
	}
	if s.Truncated {
		c.note("There are more events than shown: see 'events list'.")
	}
	return nil
}

func (c *call) finding(f ops.Finding) error {
	if err := c.say("%-4s %s", f.Level, f.Says); err != nil || f.Remedy == "" {
		return err
	}
	return c.say("     %s", f.Remedy)
}

// matrix has a row for each event and a column for each consumer.
func matrix(s ops.Story) view {
	v := view{columns: append([]string{"eventId", "eventType", "createdAt", "status"}, s.Consumers...), named: len(s.Consumers)}
	for _, e := range s.Events {
		row := []any{e.EventID, e.EventType, e.CreatedAt, e.Status}
		for _, consumer := range s.Consumers {
			cell := ""
			for _, d := range e.Deliveries {
				if d.Consumer == consumer && !d.Replay {
					cell = string(d.Status)
				}
			}
			row = append(row, cell)
		}
		v.rows = append(v.rows, row)
	}
	return v
}

func momentsView(moments []ops.Moment) view {
	v := view{columns: []string{"at", "kind", "consumer", "eventId", "actor", "says"}}
	for _, m := range moments {
		v.add(m.At, m.Kind, m.Consumer, m.EventID, m.Actor, m.Says)
	}
	return v
}
