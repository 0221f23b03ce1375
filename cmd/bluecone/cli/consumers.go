package cli

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/ops"
)

// consumerCommands are the commands about consumers.
type consumerCommands struct{ *app }

// consumers lists and steers consumers.
func (a consumerCommands) consumers() *cobra.Command {
	return group("consumers", "List, pause, resume, replay, backfill and retire consumers",
		a.consumersList(), a.consumersPause(), a.consumersResume(), a.consumersReplay(), a.consumersBackfill(), a.consumersRetire())
}

func (a consumerCommands) consumersList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "What each consumer does, and what waits for it", Args: takes(),
		Example: "  bluecone consumers list",
		RunE: a.run(func(ctx context.Context, c *call) error {
			all, err := c.Ops.Consumers(ctx)
			if err != nil {
				return err
			}
			if len(all) == 0 {
				c.note("No instance has announced a consumer yet.")
			}
			return c.print(consumersView(all), notNil(all))
		}),
	}
}

func consumersView(all []ops.Consumer) view {
	v := view{columns: []string{
		"consumer", "state", "waiting", "failed", "dead", "oldest", "lastSuccessAt", "pausedUntilAt", "pausedBy",
		"types", "lastError",
	}}
	for _, c := range all {
		var until any = c.PausedUntil
		if c.State == ops.Paused && c.PausedUntil.IsZero() {
			until = "until resumed"
		}
		name := c.Name
		if c.DisplayName != "" {
			name += " (" + c.DisplayName + ")"
		}
		v.add(name, c.State, c.Waiting, c.Failed, c.Dead, c.Oldest, c.LastSuccess, until, c.PausedBy, c.Types, c.LastError)
	}
	return v
}

// consumer finds one by its key or its name.
func (c *call) consumer(ctx context.Context, name string) (ops.Consumer, error) {
	all, err := c.Ops.Consumers(ctx)
	if err != nil {
		return ops.Consumer{}, err
	}
	known := make([]string, len(all))
	for i, one := range all {
		if one.Name == name || one.DisplayName == name { // no name is another's key
			return one, nil
		}
		known[i] = one.Name
	}
	if len(known) == 0 {
		return ops.Consumer{}, notFound("the consumer %q is unknown: no instance has announced any", name)
	}
	return ops.Consumer{}, notFound("the consumer %q is unknown%s (see 'consumers list')", name, closeTo(name, known, ""))
}

// noneOf says of which deliveries to a consumer there are none, or that there is no such consumer.
func (c *call) noneOf(ctx context.Context, q *query) (string, error) {
	name := q.q.Consumer
	if !consumelog.IsReplay(name) {
		if _, err := c.consumer(ctx, name); err != nil {
			return "", err
		}
	}
	what := "event whose delivery to " + name + " is "
	if q.delivery.is == "" {
		return what + "DEAD (--delivery says another state)", nil
	}
	return what + q.delivery.is, nil
}

func (a consumerCommands) consumersPause() *cobra.Command {
	var length time.Duration
	until := moment{ahead: true}
	var forever bool
	cmd := &cobra.Command{
		Use: "pause CONSUMER", Short: "Stop a consumer in the whole deployment", Args: takes("consumer"),
		Long: `Stops a consumer in the whole deployment. Its deliveries wait; nobody else's do. Say for how long:
a pause without an end is forgotten easily.`,
		Example: `  bluecone consumers pause PointsConsumer --for 30m --reason "points service is being restarted"
  bluecone consumers pause PointsConsumer --until 2026-11-21T18:00 --reason INC-1234`,
		ValidArgsFunction: a.completeConsumers,
	}
	cmd.Flags().DurationVar(&length, "for", 0, "how long, such as 30m")
	cmd.Flags().Var(&until, "until", "until when, such as 2026-11-21T18:00 (UTC)")
	cmd.Flags().BoolVar(&forever, "indefinitely", false, "until somebody resumes it")
	before(cmd, func(cmd *cobra.Command) error { return checkPause(cmd, length, until) })
	w := addWrite(cmd)
	cmd.RunE = a.run(func(ctx context.Context, c *call) error {
		is, err := c.consumer(ctx, c.args[0])
		if err != nil {
			return err
		}
		d, end := length, "until somebody resumes it"
		if !until.at.IsZero() {
			d = time.Until(until.at)
		}
		if d > 0 {
			end = "until " + stamp(time.Now().Add(d)) + " UTC"
		}
		if !w.dryRun {
			if err := c.Ops.Pause(ctx, w.operation(), is.Name, d); err != nil {
				return err
			}
		}
		return c.done(w, "pause", is.Name, "%s is paused %s; %s for it", is.Name, end, waits(is.Waiting))
	})
	return cmd
}

// checkPause makes sure that the length of a pause is said, in one way.
func checkPause(cmd *cobra.Command, length time.Duration, until moment) error {
	said := 0
	for _, flag := range []string{"for", "until", "indefinitely"} {
		if cmd.Flags().Changed(flag) {
			said++
		}
	}
	switch {
	case said != 1:
		return usage("%s: say for how long, in one way: --for 30m, --until TIME or --indefinitely", cmd.CommandPath())
	case cmd.Flags().Changed("for") && length <= 0:
		return usage("--for %v: it must be longer than nothing", length)
	case cmd.Flags().Changed("until") && !until.at.After(time.Now()):
		return usage("--until %s: that is over", until.String())
	}
	return nil
}

// waits is "1 delivery waits" or "2 deliveries wait".
func waits(n ops.Count) string {
	if n.Count == 1 && !n.More {
		return "1 delivery waits"
	}
	return count(n) + " deliveries wait"
}

func (a consumerCommands) consumersResume() *cobra.Command {
	cmd := &cobra.Command{
		Use: "resume CONSUMER", Short: "End a pause", Args: takes("consumer"), ValidArgsFunction: a.completeConsumers,
		Example: `  bluecone consumers resume PointsConsumer --reason "points service is back"`,
	}
	w := addWrite(cmd)
	cmd.RunE = a.run(func(ctx context.Context, c *call) error {
		is, err := c.consumer(ctx, c.args[0])
		if err != nil {
			return err
		}
		if is.State == ops.Running || is.State == ops.CircuitOpen { // an unregistered one may be paused, too
			return c.done(w, "resume", is.Name, "%s is not paused, it is %s", is.Name, is.State)
		}
		if !w.dryRun {
			if err := c.Ops.Resume(ctx, w.operation(), is.Name); err != nil {
				return err
			}
		}
		return c.done(w, "resume", is.Name, "%s is resumed; %s for it", is.Name, waits(is.Waiting))
	})
	return cmd
}

func (a consumerCommands) consumersRetire() *cobra.Command {
	var types []string
	cmd := &cobra.Command{
		Use: "retire CONSUMER", Short: "End the registration of a consumer that is gone for good", Args: takes("consumer"),
		ValidArgsFunction: a.completeConsumers,
		Long: `Ends the registration of a consumer that no code has any more: new events stop waiting for it. What already
waits goes on waiting; skip it. Nothing else ends a registration, however long no instance has the
consumer. With --type only these event types end.`,
		Example: `  bluecone consumers retire PointsConsumer --reason "points are gone since 4.0"
  bluecone consumers retire PointsConsumer --type order.renamed --reason "not taken since 4.1"`,
	}
	cmd.Flags().StringSliceVar(&types, "type", nil, "only these event types")
	a.completeTypes(cmd)
	w := addWrite(cmd)
	cmd.RunE = a.run(func(ctx context.Context, c *call) error {
		is, err := c.consumer(ctx, c.args[0])
		if err != nil {
			return err
		}
		what, until := is.Name+" is retired", ""
		if len(types) > 0 {
			what = is.Name + " no longer takes " + strings.Join(types, ", ")
		}
		if is.State != ops.Unregistered {
			until = " until an instance announces it again: one has it and does so within 30 s"
		}
		if !w.dryRun {
			if err := c.Ops.Retire(ctx, w.operation(), is.Name, types...); err != nil {
				return err
			}
		}
		return c.done(w, "retire", is.Name, "%s%s; %s for it", what, until, waits(is.Waiting))
	})
	return cmd
}

// past is the flags that select events by their type and by when they were saved.
type past struct {
	eventType    string
	since, until moment
}

func (a consumerCommands) addPast(cmd *cobra.Command, p *past) {
	cmd.Flags().StringVar(&p.eventType, "type", "", "only this event type")
	cmd.Flags().Var(&p.since, "since", "only events saved since then, such as 24h or 2026-11-21T15:00 (UTC)")
	cmd.Flags().Var(&p.until, "until", "only events saved before then")
	a.completeTypes(cmd)
}

func (p *past) query() ops.Query {
	return ops.Query{EventType: p.eventType, Since: p.since.at, Until: p.until.at}
}

func (a consumerCommands) consumersReplay() *cobra.Command {
	var eventID string
	which := &past{}
	cmd := &cobra.Command{
		Use: "replay CONSUMER", Short: "Run a consumer again over events that it has done", Args: takes("consumer"),
		ValidArgsFunction: a.completeConsumers,
		Long: `Runs a consumer again over events that it has already done. That is no retry: what the consumer did is
done a second time. It is refused unless the consumer is declared Replayable.`,
		Example: `  bluecone consumers replay SearchIndex --since 24h --type order.paid --reason "index was lost" --dry-run
  bluecone consumers replay SearchIndex --event 0193… --reason INC-1234`,
	}
	cmd.Flags().StringVar(&eventID, "event", "", "only this event id")
	a.addPast(cmd, which)
	before(cmd, func(cmd *cobra.Command) error {
		switch {
		case eventID == "" && which.since.at.IsZero():
			return usage("%s: say which events: --event ID or --since TIME", cmd.CommandPath())
		case eventID != "" && which.query() != ops.Query{}:
			return usage("%s: --event names one event: it does not go with --type, --since or --until", cmd.CommandPath())
		}
		return ordered(which.since, which.until)
	})
	p := addPace(cmd)
	w := addWrite(cmd)
	cmd.RunE = a.run(func(ctx context.Context, c *call) error {
		is, err := c.consumer(ctx, c.args[0])
		switch {
		case err != nil:
			return err
		case !is.Replayable:
			return &said{text: is.Name + " cannot be replayed: it is not declared Replayable (bus.ConsumerConfig), so running it twice may do harm"}
		case eventID != "" && !w.dryRun:
			if err := c.Ops.Replay(ctx, w.operation(), eventID, is.Name); err != nil {
				return err
			}
			return c.done(w, "replay", eventID, "%s is run again by %s", eventID, is.Name)
		}
		q := which.query()
		q.EventID = eventID
		if eventID == "" {
			q.Consumer, q.DeliveryStatus = is.Name, consumelog.Success
		}
		return c.bulk(ctx, w, p, ops.NewBulk{Action: ops.ActionReplay, Consumer: is.Name, Query: q})
	})
	return cmd
}

func (a consumerCommands) consumersBackfill() *cobra.Command {
	which := &past{}
	cmd := &cobra.Command{
		Use: "backfill CONSUMER", Short: "Give a consumer past events that it has never had", Args: takes("consumer"),
		ValidArgsFunction: a.completeConsumers,
		Long: `Gives past events to a consumer that was registered after they had been delivered: those of the types that it
takes, each once, in order. What it has had already is left alone. Live events of an aggregate wait behind its past
ones, so you need not pause the consumer. Events go back as far as retention keeps them.`,
		Example: `  bluecone consumers backfill SearchIndex --since 168h --rate 500 --reason "new in 4.2"`,
	}
	a.addPast(cmd, which)
	before(cmd, func(cmd *cobra.Command) error {
		if which.since.at.IsZero() {
			return usage("%s: say which events: --since TIME", cmd.CommandPath())
		}
		return ordered(which.since, which.until)
	})
	p := addPace(cmd)
	w := addWrite(cmd)
	cmd.RunE = a.run(func(ctx context.Context, c *call) error {
		is, err := c.consumer(ctx, c.args[0])
		if err != nil {
			return err
		}
		return c.bulk(ctx, w, p, ops.NewBulk{Action: ops.ActionBackfill, Consumer: is.Name, Query: which.query()})
	})
	return cmd
}

// ordered demands that a time span has its ends in their order.
func ordered(since, until moment) error {
	if !since.at.IsZero() && !until.at.IsZero() && !since.at.Before(until.at) {
		return usage("--since %s is not before --until %s", since.String(), until.String())
	}
	return nil
}

// notNil makes an empty list print as [].
func notNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
