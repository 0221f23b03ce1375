package console

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/ops"
	"github.com/bluecone-go/bluecone/outbox"
)

// page is something to look at, as HTML and, under the same name and with the same parameters, as JSON.
type page struct {
	name  string
	needs Permission
	load  func(r *http.Request) (any, error)
	takes []string // the parameters of the API
	plans bool     // it prepares a change, so Config.ReadOnly leaves it out
}

// reads are what pages show of a deployment.
type reads struct{ ops deployment }

// pages lists them in the order of the menu.
func (c reads) pages() []page {
	return []page{
		{name: "overview", needs: View, load: c.overview},
		{name: "events", needs: View, load: c.events, takes: append(filterNames(), "cursor", "limit")},
		{name: "event", needs: View, load: c.event, takes: []string{"id"}},
		{name: "forensics", needs: View, load: c.forensics, takes: []string{"key"}},
		{name: "consumers", needs: View, load: c.consumers},
		{name: "reservations", needs: View, load: func(r *http.Request) (any, error) { return c.ops.Reservations(r.Context()) }},
		{name: "dead", needs: View, load: func(r *http.Request) (any, error) { return c.ops.Dead(r.Context()) }},
		{name: "jobs", needs: View, load: func(r *http.Request) (any, error) { return c.ops.Jobs(r.Context()) }},
		{name: "instances", needs: View, load: func(r *http.Request) (any, error) { return c.ops.Instances(r.Context()) }},
		{name: "brokers", needs: View, load: func(r *http.Request) (any, error) { return c.ops.Brokers(r.Context()) }},
		{name: "bulks", needs: View, takes: []string{"cursor"}, load: func(r *http.Request) (any, error) {
			return c.ops.Bulks(r.Context(), r.URL.Query().Get("cursor"), pageSize)
		}},
		{name: "bulk", needs: View, takes: []string{"id"}, load: func(r *http.Request) (any, error) {
			return c.ops.Bulk(r.Context(), r.URL.Query().Get("id"))
		}},
		{
			name: "bulk-new", needs: Bulk, load: c.bulkNew, plans: true,
			takes: append(filterNames(), "op", "action", "forConsumer", "rate", "spreadSeconds"),
		},
		{name: "publish", needs: Publish, load: c.manual, plans: true, takes: []string{"eventType", "payload"}},
		{name: "audit", needs: View, load: c.audit, takes: []string{"target", "cursor", "limit"}},
		{name: "doctor", needs: View, load: func(r *http.Request) (any, error) { return c.ops.Doctor(r.Context()) }},
	}
}

// showPage answers a page as HTML.
func (c *Console) showPage(p page) func(w http.ResponseWriter, r *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		data, err := p.load(r)
		if err != nil {
			return err
		}
		c.render(w, r, http.StatusOK, c.viewOf(r, p.name, data))
		return nil
	}
}

// answerPage answers the same as JSON.
func (c *Console) answerPage(p page) func(w http.ResponseWriter, r *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		if err := p.known(r.URL.Query()); err != nil {
			return err
		}
		data, err := p.load(r)
		if err == nil {
			answerJSON(w, http.StatusOK, "application/json", data)
		}
		return err
	}
}

// known refuses parameters that the page does not have. The language is that of the address, wherever it leads.
func (p page) known(values url.Values) error {
	for _, name := range slices.Sorted(maps.Keys(values)) {
		switch {
		case name == "lang" || slices.Contains(p.takes, name):
		case len(p.takes) == 0:
			return invalid(fmt.Errorf("there is no parameter %q: %s takes none", name, p.name))
		default:
			return invalid(fmt.Errorf("there is no parameter %q: the parameters are %s", name, strings.Join(p.takes, ", ")))
		}
	}
	return nil
}

// reader reads parameters and collects the mistakes.
type reader struct {
	url.Values
	errs []error
}

func (in *reader) number(name string, least, most int64) int64 {
	s := strings.TrimSpace(in.Get(name))
	if s == "" {
		return 0
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < least || n > most {
		in.errs = append(in.errs, fmt.Errorf("%s must be a whole number between %d and %d", name, least, most))
		return 0
	}
	return n
}

// instant reads a time: RFC 3339, as a browser's datetime field writes it (UTC), or a length of time before now: "24h".
func (in *reader) instant(name string) time.Time {
	s := strings.TrimSpace(in.Get(name))
	if s == "" {
		return time.Time{}
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04", "2006-01-02T15:04:05", "2006-01-02 15:04", "2006-01-02"} {
		if at, err := time.Parse(layout, s); err == nil {
			return at.UTC()
		}
	}
	if d, err := time.ParseDuration(s); err == nil && d > 0 && d < 10*365*24*time.Hour {
		return time.Now().Add(-d).UTC().Truncate(time.Second)
	}
	in.errs = append(in.errs, errors.New(name+" must be a time such as 2026-11-21T15:04 (UTC), or a length of time before now such as 24h"))
	return time.Time{}
}

func (in *reader) oneOf(name string, allowed ...string) string {
	s := in.Get(name)
	if s != "" && !slices.Contains(allowed, s) {
		in.errs = append(in.errs, errors.New(name+" must be one of "+strings.Join(allowed, ", ")))
	}
	return s
}

func (in *reader) err() error {
	if len(in.errs) == 0 {
		return nil
	}
	return invalid(errors.Join(in.errs...))
}

func eventStates() []string {
	return []string{
		string(outbox.StatusNew), string(outbox.StatusScheduled), string(outbox.StatusDispatching), string(outbox.StatusFailed),
		string(outbox.StatusDead), string(outbox.StatusSent),
	}
}

func deliveryStates() []string {
	return []string{
		string(consumelog.Dead), string(consumelog.Failed), string(consumelog.Pending), string(consumelog.Processing),
		string(consumelog.Success), string(consumelog.Skipped),
	}
}

// query reads the filter of a list of events.
func (in *reader) query() ops.Query {
	text := func(name string) string { return strings.TrimSpace(in.Get(name)) }
	return ops.Query{
		EventID: text("eventId"), AggregateType: text("aggregateType"), AggregateID: text("aggregateId"), IdempotencyKey: text("idempotencyKey"),
		TraceID:  text("traceId"),
		TenantID: in.number("tenantId", 0, 1<<62), EventType: text("eventType"), Status: outbox.Status(in.oneOf("status", eventStates()...)),
		Consumer: text("consumer"), DeliveryStatus: consumelog.Status(in.oneOf("deliveryStatus", deliveryStates()...)),
		Fingerprint: text("fingerprint"),
		Since:       in.instant("since"), Until: in.instant("until"), Cursor: in.Get("cursor"), Limit: int(in.number("limit", 1, 500)),
	}
}

// eventList is a page of events and what the filter offers.
type eventList struct {
	ops.Page[ops.Event]
	States     []string `json:"-"`
	Deliveries []string `json:"-"`
	Narrow     bool     `json:"-"` // the filter says more than "all"
	Since      string   `json:"-"` // as it was asked for
}

func (c reads) events(r *http.Request) (any, error) {
	in := &reader{Values: r.URL.Query()}
	q := in.query()
	if err := in.err(); err != nil {
		return nil, err
	}
	if q.DeliveryStatus != "" && q.Consumer == "" {
		return nil, invalid(errors.New("deliveryStatus needs consumer: say whose delivery"))
	}
	rows, err := c.ops.Events(r.Context(), q)
	q.Cursor, q.Limit = "", 0
	return eventList{Page: rows, States: eventStates(), Deliveries: deliveryStates(), Narrow: q != ops.Query{}, Since: in.Get("since")}, err
}

// eventView is one event, and its payload if it was revealed.
type eventView struct {
	ops.Event
	Revealed *ops.Payload `json:"-"`
}

func (c reads) event(r *http.Request) (any, error) {
	e, err := c.ops.Event(r.Context(), r.URL.Query().Get("id"))
	return eventView{Event: e}, err
}

// storyView is the answer to a business key; without a key there is only the question.
type storyView struct {
	ops.Story
	Unknown bool `json:"-"`
}

func (c reads) forensics(r *http.Request) (any, error) {
	key, ctx, api := strings.TrimSpace(r.URL.Query().Get("key")), r.Context(), isAPI(r)
	if key == "" {
		if api {
			return nil, invalid(errors.New("key is missing: an aggregate id, event id, idempotency key or trace id"))
		}
		return storyView{}, nil
	}
	if !api {
		ctx = ops.WithLanguage(ctx, localeOf(r).lang)
	}
	story, err := c.ops.Trace(ctx, key)
	if errors.Is(err, ops.ErrNotFound) && !api {
		return storyView{Story: ops.Story{Key: key}, Unknown: true}, nil
	}
	return storyView{Story: story}, err
}

func (c reads) audit(r *http.Request) (any, error) {
	in := &reader{Values: r.URL.Query()}
	q := ops.AuditQuery{Target: strings.TrimSpace(in.Get("target")), Cursor: in.Get("cursor"), Limit: int(in.number("limit", 1, 500))}
	if err := in.err(); err != nil {
		return nil, err
	}
	return c.ops.Audit(r.Context(), q)
}

// bulkPlan is a bulk operation before it is started: what it would be about.
type bulkPlan struct {
	ops.NewBulk
	Count      ops.Count   `json:"count"`
	Sample     []ops.Event `json:"sample"` // the newest few
	Parameters url.Values  `json:"-"`      // of the filter, for the form
	Grown      bool        `json:"-"`      // there are more than were confirmed
}

// filterNames are the parameters of a query, as in [reader.query].
func filterNames() []string {
	return []string{
		"eventId", "aggregateType", "aggregateId", "idempotencyKey", "traceId", "tenantId", "eventType", "status", "consumer",
		"deliveryStatus", "fingerprint", "since", "until",
	}
}

func (c reads) bulkNew(r *http.Request) (any, error) { return c.plan(r, r.URL.Query()) }

func (c reads) plan(r *http.Request, values url.Values) (*bulkPlan, error) {
	in := &reader{Values: values}
	b := in.bulk()
	if err := in.err(); err != nil {
		return nil, err
	}
	var err error
	p := &bulkPlan{NewBulk: b, Parameters: url.Values{}}
	if p.Count, err = c.ops.DryRun(r.Context(), b); err != nil {
		return nil, err
	}
	q := b.Query
	q.Limit = 5
	rows, err := c.ops.Events(r.Context(), q)
	p.Sample = rows.Rows
	for _, name := range filterNames() {
		if v := values.Get(name); v != "" {
			p.Parameters.Set(name, v)
		}
	}
	if !b.Query.Since.IsZero() { // "24h" is another time at the next look
		p.Parameters.Set("since", b.Query.Since.Format(time.RFC3339))
	}
	return p, err
}

// bulk reads what to do, and to which events.
func (in *reader) bulk() ops.NewBulk {
	q := in.query()
	q.Cursor, q.Limit = "", 0
	b := ops.NewBulk{
		ID: in.Get("op"), Action: ops.Action(in.oneOf("action", string(ops.ActionRetry), string(ops.ActionReopen), string(ops.ActionSkip),
			string(ops.ActionDiscard), string(ops.ActionReplay), string(ops.ActionBackfill))), Query: q,
		Consumer: strings.TrimSpace(in.Get("forConsumer")), Rate: float64(in.number("rate", 1, 10_000)),
		Spread: time.Duration(in.number("spreadSeconds", 0, 86_400)) * time.Second,
	}
	needsConsumer := b.Action != ops.ActionRetry && b.Action != ops.ActionDiscard && b.Action != ""
	if needsConsumer && b.Consumer == "" && q.Consumer == "" {
		in.errs = append(in.errs, errors.New("consumer is missing: say whose deliveries"))
	}
	if b.Action == "" {
		in.errs = append(in.errs, errors.New("action is missing: retry, reopen, skip, discard, replay or backfill"))
	}
	return b
}

// manualView is an event to be published by hand.
type manualView struct {
	Types    []string       `json:"types"`
	Manual   ops.Manual     `json:"-"`
	Proposed *ops.Published `json:"-"` // what would be saved
	Problem  string         `json:"-"`
}

func (c reads) manual(r *http.Request) (any, error) {
	q := r.URL.Query()
	return manualView{Types: c.ops.PublishableTypes(), Manual: ops.Manual{EventType: q.Get("eventType"), Payload: q.Get("payload")}}, nil
}
