package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/ops"
	"github.com/bluecone-go/bluecone/outbox"
)

// eventCommands are the commands about events.
type eventCommands struct{ *app }

// events lists, shows and changes single events.
func (a eventCommands) events() *cobra.Command {
	return group("events", "List, show, retry, skip and discard events", a.eventsList(), a.eventsShow(), a.eventsRetry(), a.eventsSkip(),
		a.eventsDiscard())
}

// query is the flags that select events.
type query struct {
	q                ops.Query
	status, delivery choice
	since, until     moment
}

func (a eventCommands) addQuery(cmd *cobra.Command) *query {
	q := &query{
		status: choice{of: words(outbox.StatusNew, outbox.StatusScheduled, outbox.StatusDispatching, outbox.StatusSent, outbox.StatusFailed,
			outbox.StatusDead)},
		delivery: choice{of: words(consumelog.Pending, consumelog.Processing, consumelog.Failed, consumelog.Success, consumelog.Dead,
			consumelog.Skipped)},
	}
	f := cmd.Flags()
	f.StringVar(&q.q.EventID, "id", "", "event id")
	f.StringVar(&q.q.EventType, "type", "", "event type, such as order.paid")
	f.Var(&q.status, "status", "state of the event: "+either(q.status.of))
	f.StringVar(&q.q.AggregateType, "aggregate-type", "", "aggregate type, together with --aggregate-id")
	f.StringVar(&q.q.AggregateID, "aggregate-id", "", "aggregate id, such as an order number")
	f.StringVar(&q.q.IdempotencyKey, "key", "", "idempotency key of the event, or recorded by a consumer")
	f.StringVar(&q.q.TraceID, "trace", "", "trace id")
	f.Int64Var(&q.q.TenantID, "tenant", 0, "tenant id")
	f.StringVar(&q.q.Consumer, "consumer", "", "events whose delivery to this consumer is in the state --delivery")
	f.Var(&q.delivery, "delivery", "state of the delivery to --consumer: "+either(q.delivery.of)+" (default DEAD)")
	f.StringVar(&q.q.Fingerprint, "group", "", "fingerprint of a group of 'dead list'")
	f.Var(&q.since, "since", "saved then or later: 2h, or 2026-11-21T15:00 (UTC)")
	f.Var(&q.until, "until", "saved before then")
	a.completeConsumerFlag(cmd)
	a.completeTypes(cmd)
	complete(cmd, "status", q.status.of...)
	complete(cmd, "delivery", q.delivery.of...)
	before(cmd, func(*cobra.Command) error {
		if q.delivery.is != "" && q.q.Consumer == "" {
			return usage("--delivery %s: say at which consumer, with --consumer", q.delivery.is)
		}
		q.q.Status, q.q.DeliveryStatus = outbox.Status(q.status.is), consumelog.Status(q.delivery.is)
		q.q.Since, q.q.Until = q.since.at, q.until.at
		return ordered(q.since, q.until)
	})
	return q
}

func words[S ~string](of ...S) []string {
	all := make([]string, len(of))
	for i, s := range of {
		all[i] = string(s)
	}
	return all
}

func (a eventCommands) eventsList() *cobra.Command {
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "Events, newest first", Args: takes(),
		Example: `  bluecone events list --status FAILED
  bluecone events list --aggregate-type ORDER --aggregate-id 42
  bluecone events list --consumer PointsConsumer --delivery DEAD --since 24h --output csv`,
	}
	q, p := a.addQuery(cmd), addPaging(cmd)
	cmd.RunE = a.run(func(ctx context.Context, c *call) error {
		page, err := pages(p, func(cursor string, limit int) (ops.Page[ops.Event], error) {
			one := q.q
			one.Cursor, one.Limit = cursor, limit
			return c.Ops.Events(ctx, one)
		})
		if err != nil {
			return err
		}
		if !page.SearchedTo.IsZero() {
			c.note("The search took too long: everything back to %s UTC has been looked at.", stamp(page.SearchedTo))
		}
		what := "such event"
		if q.q.Consumer != "" && len(page.Rows) == 0 {
			if what, err = c.noneOf(ctx, q); err != nil {
				return err
			}
		}
		return c.page(eventsView(page.Rows), page, page.Next, what, len(page.Rows))
	})
	return cmd
}

func eventsView(events []ops.Event) view {
	v := view{columns: []string{"eventId", "eventType", "aggregateType", "aggregateId", "status", "createdAt", "deliveries", "lastError"}}
	for _, e := range events {
		v.add(e.EventID, e.EventType, e.AggregateType, e.AggregateID, e.Status, e.CreatedAt, progressOf(e.Deliveries), e.LastError)
	}
	return v
}

// progressOf says how many deliveries are done, and where the others are.
func progressOf(deliveries []ops.Delivery) string {
	done := 0
	var open []string
	for _, d := range deliveries {
		if d.Status == consumelog.Success || d.Status == consumelog.Skipped {
			done++
			continue
		}
		state := string(d.Status)
		if state == "" {
			state = "not yet"
		}
		open = append(open, d.Consumer+" "+state)
	}
	text := fmt.Sprintf("%d/%d", done, len(deliveries))
	if len(open) > 0 {
		text += ", " + strings.Join(open, ", ")
	}
	return text
}

func (a eventCommands) eventsShow() *cobra.Command {
	var payload bool
	w := &write{}
	cmd := &cobra.Command{
		Use: "show EVENT-ID", Short: "One event with every delivery and attempt", Args: takes("event id"),
		Example: `  bluecone events show 0193…
  bluecone events show 0193… --payload --reason "customer asks what was sent"`,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().BoolVar(&payload, "payload", false, "show the payload too; that is kept in the audit log, and needs --reason")
	w.add(cmd, "why the payload is needed; kept in the audit log")
	before(cmd, func(cmd *cobra.Command) error {
		if !payload {
			return nil
		}
		return w.demand(cmd, " --payload")
	})
	cmd.RunE = a.run(func(ctx context.Context, c *call) error {
		e, err := c.event(ctx, c.args[0])
		if err != nil {
			return err
		}
		full := struct {
			ops.Event
			Payload *ops.Payload `json:"payload,omitempty"`
		}{Event: e}
		if payload {
			p, err := c.payload(ctx, w.operation(), e.EventID)
			if err != nil {
				return err
			}
			full.Payload = &p
		}
		if c.format == "json" || c.format == "csv" {
			return c.print(eventsView([]ops.Event{e}), full)
		}
		return c.showEvent(e, full.Payload)
	})
	return cmd
}

func (c *call) event(ctx context.Context, id string) (ops.Event, error) {
	e, err := c.Ops.Event(ctx, id)
	if ExitCode(err) == exitNotFound {
		return e, notFound("there is no event %q (to search by another key: trace %s)", id, id)
	}
	return e, err
}

func (c *call) showEvent(e ops.Event, p *ops.Payload) error {
	facts := [][2]string{
		{"event", e.EventID},
		{"type", fmt.Sprintf("%s, version %d", e.EventType, e.SchemaVersion)},
		{"aggregate", e.AggregateType + " " + e.AggregateID},
		{"status", string(e.Status)},
		{"saved", stamp(e.CreatedAt) + " UTC"},
	}
	for name, value := range map[string]time.Time{"sent": e.SentAt, "due": e.NextRetryAt} {
		if !value.IsZero() {
			facts = append(facts, [2]string{name, stamp(value) + " UTC"})
		}
	}
	for _, f := range [][2]string{
		{"key", e.IdempotencyKey},
		{"trace", e.TraceID},
		{"trace at", e.TraceURL},
		{"request", e.RequestID},
		{"user", e.UserID},
		{"source", e.Source},
		{"leased by", e.LockedBy},
		{"last error", e.LastError},
	} {
		if f[1] != "" {
			facts = append(facts, f)
		}
	}
	if e.TenantID != 0 {
		facts = append(facts, [2]string{"tenant", fmt.Sprintf("%d, store %d", e.TenantID, e.StoreID)})
	}
	if p != nil {
		facts = append(facts, [2]string{"payload", p.Payload}, [2]string{"metadata", p.Metadata})
		if p.Redacted {
			facts = append(facts, [2]string{"", "(personal data is hidden)"})
		}
	}
	for _, f := range facts {
		if err := c.say("%-11s %s", f[0], f[1]); err != nil {
			return err
		}
	}
	return c.showDeliveries(e)
}

func (c *call) showDeliveries(e ops.Event) error {
	if len(e.Deliveries) == 0 {
		return c.title("No consumer has it yet.")
	}
	deliveries := view{columns: []string{"consumer", "status", "attempts", "consumedAt", "nextRetryAt", "idempotencyKey", "result", "error"}}
	attempts := view{columns: []string{"at", "consumer", "attempt", "outcome", "took", "instance", "error"}}
	for _, d := range e.Deliveries {
		deliveries.add(d.Consumer, d.Status, d.Attempts, d.ConsumedAt, d.NextRetryAt, d.IdempotencyKey, d.Result, d.Error)
		for _, h := range d.History {
			attempts.add(h.At, d.Consumer, h.Attempt, h.Outcome, h.Duration, h.Instance, h.Error)
		}
	}
	if err := c.title(""); err != nil {
		return err
	}
	if err := c.print(deliveries, nil); err != nil || len(attempts.rows) == 0 {
		return err
	}
	slices.SortStableFunc(attempts.rows, func(a, b []any) int { return a[0].(time.Time).Compare(b[0].(time.Time)) })
	if err := c.title(""); err != nil {
		return err
	}
	return c.print(attempts, nil)
}

// intervention is a change of the deliveries of one event.
type intervention struct {
	verb, past string
	from       []consumelog.Status // the states it is for
	named      []consumelog.Status // further ones, if consumers are named
	only       string              // the event type that it is for; empty for all
}

// open picks the deliveries that an intervention is for.
func (iv intervention) open(e ops.Event, consumers []string) ([]string, error) {
	var found []string
	if iv.only != "" && e.EventType != iv.only {
		return nil, notFound("nothing to %s: the event %s is of the type %s, not %s", iv.verb, e.EventID, e.EventType, iv.only)
	}
	for _, name := range consumers {
		if !slices.ContainsFunc(e.Deliveries, func(d ops.Delivery) bool { return d.Consumer == name }) {
			var known []string
			for _, d := range e.Deliveries {
				known = append(known, d.Consumer)
			}
			return nil, notFound("--consumer %q: the event %s has no delivery to it%s", name, e.EventID, closeTo(name, known, ""))
		}
	}
	for _, d := range e.Deliveries {
		if len(consumers) > 0 && !slices.Contains(consumers, d.Consumer) {
			continue
		}
		if slices.Contains(iv.from, d.Status) || (len(consumers) > 0 && slices.Contains(iv.named, d.Status)) {
			found = append(found, d.Consumer)
		}
	}
	if len(found) == 0 {
		return nil, notFound("nothing to %s: the event %s is %s (%s)", iv.verb, e.EventID, e.Status, progressOf(e.Deliveries))
	}
	return found, nil
}

func (a eventCommands) eventsRetry() *cobra.Command {
	var consumers []string
	cmd := &cobra.Command{
		Use: "retry EVENT-ID", Short: "Make what has failed of an event due at once", Args: takes("event id"),
		ValidArgsFunction: cobra.NoFileCompletions,
		Long: `Makes every DEAD and FAILED delivery of an event due at once, with all its attempts before it; or the
deliveries of the named consumers, also if they are PENDING or SKIPPED. For many events: dead retry.`,
		Example: `  bluecone events retry 0193… --reason "points service is back"
  bluecone events retry 0193… --consumer PointsConsumer --reason INC-1234 --dry-run`,
	}
	cmd.Flags().StringSliceVar(&consumers, "consumer", nil, "only the delivery to this consumer; may be repeated (default: all)")
	a.completeConsumerFlag(cmd)
	iv := intervention{
		verb: "retry", past: "is due at once", from: []consumelog.Status{consumelog.Dead, consumelog.Failed},
		named: []consumelog.Status{consumelog.Pending, consumelog.Skipped},
	}
	return a.intervene(cmd, iv, &consumers, func(ctx context.Context, c *call, op ops.Operation) error {
		return c.retry(ctx, op, c.args[0], consumers)
	})
}

func (a eventCommands) eventsSkip() *cobra.Command {
	var consumers []string
	cmd := &cobra.Command{
		Use: "skip EVENT-ID --consumer CONSUMER", Short: "Close one delivery of an event without an effect", Args: takes("event id"),
		ValidArgsFunction: cobra.NoFileCompletions,
		Long:              "Closes the delivery of an event to one consumer without an effect. Later events of its aggregate may then pass.",
		Example:           `  bluecone events skip 0193… --consumer PointsConsumer --reason "points were granted by hand"`,
	}
	cmd.Flags().StringSliceVar(&consumers, "consumer", nil, "whose delivery (required)")
	a.completeConsumerFlag(cmd)
	before(cmd, func(cmd *cobra.Command) error {
		if len(consumers) != 1 || consumers[0] == "" {
			return usage("%s: name one consumer with --consumer (for all: events discard)", cmd.CommandPath())
		}
		return nil
	})
	iv := intervention{verb: "skip", past: "is skipped", from: []consumelog.Status{consumelog.Dead, consumelog.Failed, consumelog.Pending}}
	return a.intervene(cmd, iv, &consumers, func(ctx context.Context, c *call, op ops.Operation) error {
		return c.Ops.Skip(ctx, op, c.args[0], consumers[0])
	})
}

func (a eventCommands) eventsDiscard() *cobra.Command {
	cmd := &cobra.Command{
		Use: "discard EVENT-ID", Short: "Give up an event: close every delivery that is not done", Args: takes("event id"),
		ValidArgsFunction: cobra.NoFileCompletions,
		Example:           `  bluecone events discard 0193… --reason "test data"`,
	}
	iv := intervention{verb: "discard", past: "is given up", from: []consumelog.Status{
		consumelog.Dead, consumelog.Failed, consumelog.Pending,
		consumelog.Processing, "",
	}}
	return a.intervene(cmd, iv, &[]string{}, func(ctx context.Context, c *call, op ops.Operation) error {
		return c.Ops.Discard(ctx, op, c.args[0])
	})
}

// retry makes deliveries due. One that was skipped is due again if its consumer is named: who runs this has the database.
func (c *call) retry(ctx context.Context, op ops.Operation, eventID string, consumers []string) error {
	err := c.Ops.Retry(ctx, op, eventID, consumers...)
	for _, consumer := range consumers {
		if again := c.Ops.Reopen(ctx, op, eventID, consumer); again == nil {
			err = nil
		} else if !errors.Is(again, ops.ErrNotFound) {
			return errors.Join(err, again)
		}
	}
	return err
}

func (a eventCommands) intervene(cmd *cobra.Command, iv intervention, consumers *[]string,
	do func(ctx context.Context, c *call, op ops.Operation) error,
) *cobra.Command {
	w := addWrite(cmd)
	cmd.RunE = a.run(func(ctx context.Context, c *call) error {
		e, err := c.event(ctx, c.args[0])
		if err != nil {
			return err
		}
		open, err := iv.open(e, *consumers)
		if err != nil {
			return err
		}
		if !w.dryRun {
			if err := do(ctx, c, w.operation()); err != nil {
				return err
			}
		}
		return c.done(w, iv.verb, e.EventID, "%s %s of %s %s: %s %s", e.EventType, e.EventID, e.AggregateType, e.AggregateID,
			strings.Join(open, ", "), iv.past)
	})
	return cmd
}
