package console

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/doctor"
	"github.com/bluecone-go/bluecone/ops"
	"github.com/bluecone-go/bluecone/outbox"
)

// fake is a deployment in which every text is the same, so that a hostile one is everywhere, and
// which notes what was done to it.
type fake struct {
	text string // everywhere, where the outside world decides

	mu      sync.Mutex
	calls   []string
	fails   error
	refused []string // attempts
	count   int64
}

func (f *fake) did(format string, args ...any) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, fmt.Sprintf(format, args...))
	return f.fails
}

func (f *fake) done() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.calls...)
}

func then() time.Time { return time.Now().Add(-90 * time.Second) }

func (f *fake) event() ops.Event {
	s := f.text
	d := ops.Delivery{
		Consumer: s, Status: consumelog.Dead, Attempts: 10, Error: s, IdempotencyKey: s, Result: s, LockedBy: s, CreatedAt: then(),
		NextRetryAt: then(), UpdatedAt: then(),
		History: []ops.Attempt{{Attempt: 1, Outcome: consumelog.Failed, Error: s, Instance: s, Duration: time.Millisecond, At: then()}},
	}
	done, skipped, none := d, d, d
	done.Status, skipped.Status, none.Status = consumelog.Success, consumelog.Status(s), ""
	return ops.Event{
		OutboxID: 1 << 60, EventID: s, EventType: s, SchemaVersion: 1, AggregateType: s, AggregateID: s, TenantID: 7, StoreID: 3,
		Status: outbox.StatusDead, TraceID: s, IdempotencyKey: s, RequestID: s, UserID: s, Source: s,
		Instance: s, LastError: s, LockedBy: s, Expired: 1, CreatedAt: then(), UpdatedAt: then(), SentAt: then(), NextRetryAt: then(),
		Deliveries: []ops.Delivery{d, done, skipped, none},
	}
}

func (f *fake) finding() ops.Finding {
	return ops.Finding{
		Rule: "dead", Level: ops.Bad, Says: f.text, Remedy: f.text, EventID: f.text, Consumer: f.text,
		Args: map[string]string{"consumer": f.text, "error": f.text, "n": f.text},
	}
}

func (f *fake) consumer() ops.Consumer {
	s := f.text
	return ops.Consumer{
		Name: s, Types: []string{s}, DisplayName: s, State: ops.Paused, PausedUntil: time.Now().Add(time.Hour), PausedBy: s, PauseReason: s,
		SeenAt: then(), Waiting: ops.Count{Count: 12_345}, Failed: ops.Count{Count: 3},
		Dead: ops.Count{Count: ops.CountCap, More: true}, Oldest: time.Minute, LastSuccess: then(), LastError: s, LastErrorAt: then(),
	}
}

func (f *fake) group() ops.DeadGroup {
	return ops.DeadGroup{
		Fingerprint: f.text, Consumer: f.text, EventType: f.text, Error: f.text, Sample: f.text + " ",
		SampleEvent: f.text, Dead: 7, Failed: 2, First: then(), Last: then(),
	}
}

func (f *fake) instance() ops.Instance {
	return ops.Instance{Name: f.text, Host: f.text, Version: f.text, Started: then(), Seen: then(), Alive: true}
}

func (f *fake) Overview(context.Context) (ops.Overview, error) {
	return ops.Overview{
		At: time.Now(), Health: f.finding(), Events: map[outbox.Status]ops.Count{outbox.StatusDead: {Count: 4}}, Oldest: time.Minute,
		SavedRate: 3.2, DoneRate: 1234.5,
		Series:    ops.Series{Step: 10 * time.Second, Saved: []float64{1, 4, 2}, Done: []float64{0, 0, 0}, Open: []float64{5, 6, 7}},
		Consumers: []ops.Consumer{f.consumer()}, Dead: []ops.DeadGroup{f.group()}, Instances: []ops.Instance{f.instance()},
	}, f.fails
}

func (f *fake) Events(_ context.Context, q ops.Query) (ops.Page[ops.Event], error) {
	return ops.Page[ops.Event]{Rows: []ops.Event{f.event()}, Next: f.text, SearchedTo: then()}, f.did("events %+v", q)
}

func (f *fake) Event(_ context.Context, id string) (ops.Event, error) {
	if id == "missing" {
		return ops.Event{}, fmt.Errorf("event missing: %w", ops.ErrNotFound)
	}
	return f.event(), f.did("event %s", id)
}

const canary = "canary-0815-secret"

func (f *fake) Payload(_ context.Context, op ops.Operation, id string) (ops.Payload, error) {
	return ops.Payload{
		Payload: `{"secret":"` + canary + `","text":"` + f.text + `"}`, Metadata: `{"traceId":"` + f.text + `"}`,
		Redacted: true,
	}, f.did("payload %s %s", op.Actor, id)
}

func (f *fake) Trace(ctx context.Context, key string) (ops.Story, error) {
	if key == "missing" {
		return ops.Story{}, fmt.Errorf("key missing: %w", ops.ErrNotFound)
	}
	m := ops.Moment{
		At: then(), Kind: f.text, EventID: f.text, Consumer: f.text, Actor: f.text, Says: f.text, TraceID: f.text,
		TraceURL: "https://traces.example/" + f.text,
	}
	return ops.Story{
		Key: key, Findings: []ops.Finding{f.finding()}, Events: []ops.Event{f.event()}, Consumers: []string{f.text, "other"},
		Moments: []ops.Moment{m},
		Sections: []ops.Facts{
			{Title: f.text + " in " + ops.Language(ctx), Rows: []ops.Fact{{Name: f.text, Value: f.text}}, Findings: []ops.Finding{f.finding()}},
		}, Truncated: true,
	}, f.did("trace %s", key)
}

func (f *fake) Consumers(context.Context) ([]ops.Consumer, error) {
	running := f.consumer()
	running.State = ops.Running
	return []ops.Consumer{f.consumer(), running}, f.fails
}

func (f *fake) Dead(context.Context) ([]ops.DeadGroup, error) {
	return []ops.DeadGroup{f.group()}, f.fails
}

func (f *fake) Jobs(context.Context) ([]ops.JobState, error) {
	return []ops.JobState{
		{
			Code: f.text, Cron: f.text, Words: f.text, LockedBy: f.text, NextDue: time.Now().Add(time.Hour), LastStatus: f.text, Runs: []ops.JobRun{
				{Instance: f.text, Status: "SUCCESS", StartedAt: then(), Duration: time.Second, Counts: map[string]int64{f.text: 3}, Error: f.text},
			},
		},
	}, f.fails
}

func (f *fake) Instances(context.Context) ([]ops.Instance, error) {
	return []ops.Instance{f.instance()}, f.fails
}

func (f *fake) Reservations(context.Context) ([]ops.Reservation, error) {
	return []ops.Reservation{{
		EventID: f.text, EventType: f.text, Producer: f.text, State: ops.ReservationState(f.text), CheckHost: f.text, Checks: 12_345,
		LastError: f.text, CreatedAt: then(), ExpiresAt: then(), Over: true, NextCheck: then(), UpdatedAt: then(),
	}}, f.fails
}

func (f *fake) Brokers(context.Context) (ops.Brokers, error) {
	s := f.text
	return ops.Brokers{
		Links: []ops.BrokerLink{{
			Role: ops.BrokerRole(s), Name: s, Instance: s, Broker: s, State: ops.LinkState(s), Window: 512, Unconfirmed: 12_345, Lag: 3,
			LastError: s, LastErrorAt: then(), Seen: then(),
		}},
		Partitions: []ops.Partition{{
			Name: s, Partition: s, Landed: 12_345, Duplicates: 3, Undecodable: 1, Offset: s, Owner: s, Seen: then(),
		}},
	}, f.fails
}

func (f *fake) Audit(_ context.Context, q ops.AuditQuery) (ops.Page[ops.AuditRow], error) {
	return ops.Page[ops.AuditRow]{
		Rows: []ops.AuditRow{{ID: 1, Actor: f.text, Action: f.text, Target: f.text, Reason: f.text, Details: f.text, At: then()}}, Next: "n",
	}, f.did("audit %+v", q)
}

func (f *fake) Doctor(context.Context) (doctor.Report, error) {
	return doctor.Report{{Check: f.text, Level: doctor.Warn, Says: f.text, Remedy: f.text}}, f.fails
}

func (f *fake) bulk(id string) ops.Bulk {
	return ops.Bulk{
		ID: id, Action: ops.ActionRetry, Query: ops.Query{
			EventID: f.text, EventType: f.text, AggregateType: f.text, AggregateID: f.text, Consumer: f.text, Fingerprint: f.text,
			TraceID: f.text, IdempotencyKey: f.text, Since: then(),
		}, Consumer: f.text, Rate: 100, Spread: time.Minute,
		State: ops.BulkRunning, Total: ops.Count{Count: 100}, Seen: 40, Done: 38, Passed: 2, Actor: f.text, Reason: f.text, LockedBy: f.text,
		CreatedAt: then(), UpdatedAt: then(), Error: f.text,
	}
}

func (f *fake) Bulks(context.Context, string, int) (ops.Page[ops.Bulk], error) {
	return ops.Page[ops.Bulk]{Rows: []ops.Bulk{f.bulk(f.text)}, Next: "n"}, f.fails
}
func (f *fake) Bulk(_ context.Context, id string) (ops.Bulk, error) { return f.bulk(id), f.fails }
func (f *fake) DryRun(_ context.Context, b ops.NewBulk) (ops.Count, error) {
	return ops.Count{Count: f.count}, f.did("dry run %s", b.Action)
}
func (f *fake) PublishableTypes() []string { return []string{f.text} }
func (f *fake) CheckManual(_ context.Context, m ops.Manual) (ops.Published, error) {
	return ops.Published{EventID: f.text, EventType: f.text, AggregateType: f.text, AggregateID: f.text, IdempotencyKey: f.text},
		f.did("check %s", m.EventType)
}

func (f *fake) Retry(_ context.Context, op ops.Operation, id string, consumers ...string) error {
	return f.did("retry %s %s %s %v", op.Actor, op.Reason, id, consumers)
}

func (f *fake) Reopen(_ context.Context, op ops.Operation, id, consumer string) error {
	return f.did("reopen %s %s %s", op.Actor, id, consumer)
}

func (f *fake) Skip(_ context.Context, op ops.Operation, id, consumer string) error {
	return f.did("skip %s %s %s", op.Actor, id, consumer)
}

func (f *fake) Discard(_ context.Context, op ops.Operation, id string) error {
	return f.did("discard %s %s", op.Actor, id)
}

func (f *fake) Replay(_ context.Context, op ops.Operation, id, consumer string) error {
	return f.did("replay %s %s %s", op.Actor, id, consumer)
}

func (f *fake) Pause(_ context.Context, op ops.Operation, consumer string, d time.Duration) error {
	return f.did("pause %s %s %v", op.Actor, consumer, d)
}

func (f *fake) Resume(_ context.Context, op ops.Operation, consumer string) error {
	return f.did("resume %s %s", op.Actor, consumer)
}

func (f *fake) Retire(_ context.Context, op ops.Operation, consumer string, eventTypes ...string) error {
	return f.did("retire %s %s %v", op.Actor, consumer, eventTypes)
}

func (f *fake) RunJob(_ context.Context, op ops.Operation, code string) (map[string]int64, bool, error) {
	return map[string]int64{"released": 3}, true, f.did("run %s %s", op.Actor, code)
}

func (f *fake) Publish(_ context.Context, op ops.Operation, m ops.Manual) (ops.Published, error) {
	return ops.Published{EventID: "e1", Created: true}, f.did("publish %s %s", op.Actor, m.EventType)
}

func (f *fake) StartBulk(_ context.Context, op ops.Operation, b ops.NewBulk) (ops.Bulk, error) {
	return f.bulk(b.ID), f.did("bulk %s %s %s %v", op.Actor, b.Action, b.ID, b.Spread)
}

func (f *fake) Refused(_ context.Context, op ops.Operation, route string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refused = append(f.refused, op.Actor+" "+route)
	return nil
}

func (f *fake) CancelBulk(_ context.Context, op ops.Operation, id string) error {
	return f.did("cancel %s %s", op.Actor, id)
}

func (f *fake) ResumeBulk(_ context.Context, op ops.Operation, id string) error {
	return f.did("go on %s %s", op.Actor, id)
}
