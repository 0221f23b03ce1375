package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/ops"
)

// deadCommands are the commands about dead letters.
type deadCommands struct{ *app }

// dead looks after deliveries that failed for good.
func (a deadCommands) dead() *cobra.Command {
	return group("dead", "List, retry and export what failed for good", a.deadList(), a.deadRetry(), a.deadExport())
}

func (a deadCommands) deadList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "DEAD and FAILED deliveries, grouped by what went wrong", Args: takes(),
		Example: "  bluecone dead list",
		RunE: a.run(func(ctx context.Context, c *call) error {
			groups, err := c.Ops.Dead(ctx)
			if err != nil {
				return err
			}
			return c.page(deadView(groups), notNil(groups), "", "delivery is DEAD or FAILED", len(groups))
		}),
	}
}

func deadView(groups []ops.DeadGroup) view {
	v := view{columns: []string{"group", "consumer", "eventType", "dead", "failed", "firstAt", "lastAt", "sampleEvent", "error"}}
	for _, g := range groups {
		v.add(g.Fingerprint, g.Consumer, g.EventType, ops.Count{Count: g.Dead, More: g.More}, ops.Count{Count: g.Failed, More: g.More}, g.First,
			g.Last, g.SampleEvent, g.Sample)
	}
	return v
}

// selection says which dead deliveries are meant.
type selection struct {
	consumer, group string
	all             bool
}

func (a deadCommands) addSelection(cmd *cobra.Command) *selection {
	s := &selection{}
	cmd.Flags().StringVar(&s.consumer, "consumer", "", "those of one consumer")
	cmd.Flags().StringVar(&s.group, "group", "", "those of one group of 'dead list'")
	a.completeConsumerFlag(cmd)
	a.completeWith(cmd, "group", func(ctx context.Context, o *ops.Ops) ([]string, error) {
		groups, err := o.Dead(ctx)
		var found []string
		for _, g := range groups {
			found = append(found, g.Fingerprint+"\t"+g.Consumer+": "+clean(g.Error))
		}
		return found, err
	})
	return s
}

// queries are one for each consumer that is meant.
func (s *selection) queries(ctx context.Context, c *call) ([]ops.Query, error) {
	groups, err := c.Ops.Dead(ctx)
	if err != nil {
		return nil, err
	}
	var consumers, fingerprints []string
	for _, g := range groups {
		if g.Dead > 0 {
			consumers = append(consumers, g.Consumer)
		}
		fingerprints = append(fingerprints, g.Fingerprint)
		if s.group != "" && g.Fingerprint == s.group {
			if s.consumer != "" && s.consumer != g.Consumer {
				return nil, notFound("--group %s is of the consumer %s, not of --consumer %s", s.group, g.Consumer, s.consumer)
			}
			return []ops.Query{{Consumer: g.Consumer, DeliveryStatus: consumelog.Dead, Fingerprint: g.Fingerprint}}, nil
		}
	}
	switch {
	case s.group != "":
		return nil, notFound("--group %q: there is no such group%s (see 'dead list')", s.group, closeTo(s.group, fingerprints, ""))
	case s.consumer != "" && !slices.Contains(consumers, s.consumer):
		if _, err := c.consumer(ctx, s.consumer); err != nil {
			return nil, err
		}
		return nil, notFound("no delivery to %s is DEAD", s.consumer)
	case s.consumer != "":
		consumers = []string{s.consumer}
	}
	var queries []ops.Query
	for _, name := range unique(consumers) {
		queries = append(queries, ops.Query{Consumer: name, DeliveryStatus: consumelog.Dead})
	}
	if len(queries) == 0 {
		return nil, notFound("no delivery is DEAD")
	}
	return queries, nil
}

func (a deadCommands) deadRetry() *cobra.Command {
	cmd := &cobra.Command{
		Use: "retry", Short: "Retry what failed for good, after its cause is fixed", Args: takes(),
		Long: `Makes DEAD deliveries due, with all their attempts before them: one group, one consumer, or all. It runs
as a bulk operation, shows its progress, and goes on if you leave. With many of them, --spread them
over a while so that the consumer is not overloaded.`,
		Example: `  bluecone dead retry --group 3f2a… --reason "points service is back"
  bluecone dead retry --consumer PointsConsumer --spread 5m --reason INC-1234
  bluecone dead retry --all --dry-run`,
	}
	s, p := a.addSelection(cmd), addPace(cmd)
	cmd.Flags().BoolVar(&s.all, "all", false, "those of every consumer")
	cmd.Flags().DurationVar(&p.spread, "spread", 0, "let them fall due evenly over this time, such as 5m")
	atLeast(cmd, "spread", &p.spread, 0)
	before(cmd, func(cmd *cobra.Command) error {
		switch {
		case s.all && (s.consumer != "" || s.group != ""):
			return usage("%s: --all does not go with --consumer or --group", cmd.CommandPath())
		case !s.all && s.consumer == "" && s.group == "":
			return usage("%s: say which: --group FINGERPRINT (see 'dead list'), --consumer CONSUMER or --all", cmd.CommandPath())
		}
		return nil
	})
	w := addWrite(cmd)
	cmd.RunE = a.run(func(ctx context.Context, c *call) error {
		queries, err := s.queries(ctx, c)
		if err != nil {
			return err
		}
		for _, q := range queries {
			if err := c.bulk(ctx, w, p, ops.NewBulk{Action: ops.ActionRetry, Consumer: q.Consumer, Query: q}); err != nil {
				return err
			}
		}
		return nil
	})
	return cmd
}

func (a deadCommands) deadExport() *cobra.Command {
	var file string
	var payload bool
	w := &write{}
	cmd := &cobra.Command{
		Use: "export", Short: "Write every DEAD delivery as a line of JSON, or as CSV", Args: takes(),
		Long: `Writes every DEAD delivery, or those of one consumer or group, as one line of JSON each; with --output csv
as CSV. Payloads are left out unless --payload says otherwise.`,
		Example: `  bluecone dead export > dead.ndjson
  bluecone dead export --consumer PointsConsumer --output csv --file dead.csv
  bluecone dead export --payload --reason "for the incident report"`,
	}
	s := a.addSelection(cmd)
	cmd.Flags().StringVar(&file, "file", "", "write to this file, which must not exist yet (default: standard output)")
	cmd.Flags().BoolVar(&payload, "payload", false, "with payloads; each is kept in the audit log, and it needs --reason")
	w.add(cmd, "why the payloads are needed; kept in the audit log")
	before(cmd, func(cmd *cobra.Command) error {
		if !payload {
			return nil
		}
		return w.demand(cmd, " --payload")
	})
	cmd.RunE = a.run(func(ctx context.Context, c *call) error {
		queries, err := s.queries(ctx, c)
		if errors.Is(err, errNotFound) && s.consumer == "" && s.group == "" {
			err = nil // nothing is DEAD: an empty export
		}
		if err != nil {
			return err
		}
		out, end, err := c.exportTo(file)
		if err != nil {
			return err
		}
		x := export{call: c, out: out, payload: payload, op: w.operation()}
		err = x.run(ctx, queries)
		return errors.Join(err, end())
	})
	return cmd
}

// exportTo opens the file to export to.
func (c *call) exportTo(file string) (io.Writer, func() error, error) {
	if file == "" {
		return c.cmd.OutOrStdout(), func() error { return nil }, nil
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, nil, usage("--file %q: %s", file, errors.Unwrap(err))
	}
	return f, f.Close, nil
}

// deadDelivery is a line of an export.
type deadDelivery struct {
	Consumer string        `json:"consumer"`
	Error    string        `json:"error"`
	Attempts int           `json:"attempts"`
	Event    ops.Event     `json:"event"`
	Payload  *exportedJSON `json:"payload,omitempty"`
}

// exportedJSON is a payload as JSON, or as text if it is none.
type exportedJSON string

// MarshalJSON is part of json.Marshaler.
func (p exportedJSON) MarshalJSON() ([]byte, error) {
	if json.Valid([]byte(p)) {
		return []byte(p), nil
	}
	return json.Marshal(string(p))
}

type export struct {
	*call
	out     io.Writer
	payload bool
	op      ops.Operation
	lines   int64
}

func (x *export) run(ctx context.Context, queries []ops.Query) error {
	table := view{columns: []string{
		"consumer", "eventId", "eventType", "aggregateType", "aggregateId", "createdAt", "attempts", "error",
		"payload",
	}}
	bar := newProgress(x.cmd.ErrOrStderr(), "export", ops.Count{More: true})
	defer bar.end()
	for _, q := range queries {
		for q.Limit = most; ; {
			page, err := x.Ops.Events(ctx, q)
			if err != nil {
				return err
			}
			for _, e := range page.Rows {
				d, err := x.delivery(ctx, q.Consumer, e)
				if err != nil {
					return err
				}
				if err := x.line(&table, d); err != nil {
					return err
				}
			}
			bar.set(x.lines)
			if q.Cursor = page.Next; q.Cursor == "" {
				break
			}
		}
	}
	switch {
	case x.format == "csv":
		return printCSV(x.out, table)
	case x.cmd.Flags().Changed("output") && x.format == "table":
		return printTable(x.out, table)
	}
	bar.end()
	x.note("%s.", plural(x.lines, "delivery")+" exported")
	return nil
}

func (x *export) delivery(ctx context.Context, consumer string, e ops.Event) (deadDelivery, error) {
	d := deadDelivery{Consumer: consumer, Event: e}
	for _, one := range e.Deliveries {
		if one.Consumer == consumer && !one.Replay {
			d.Error, d.Attempts = one.Error, one.Attempts
		}
	}
	if !x.payload {
		return d, nil
	}
	p, err := x.call.payload(ctx, x.op, e.EventID)
	if err != nil {
		return d, fmt.Errorf("payload of %s: %w", e.EventID, err)
	}
	text := exportedJSON(p.Payload)
	d.Payload = &text
	return d, nil
}

func (x *export) line(table *view, d deadDelivery) error {
	x.lines++
	if x.format == "csv" || (x.cmd.Flags().Changed("output") && x.format == "table") {
		payload := ""
		if d.Payload != nil {
			payload = string(*d.Payload)
		}
		table.add(d.Consumer, d.Event.EventID, d.Event.EventType, d.Event.AggregateType, d.Event.AggregateID, d.Event.CreatedAt, d.Attempts,
			d.Error, payload)
		return nil
	}
	text, err := json.Marshal(d)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(x.out, strings.TrimSpace(string(harmless(text))))
	return err
}
