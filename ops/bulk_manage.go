package ops

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/kind"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/store/view"
	"github.com/bluecone-go/bluecone/internal/text"
	"github.com/bluecone-go/bluecone/outbox"
)

const defaultBulkRate = 100

// normal fills in the defaults of a request, and reports all its mistakes.
func (b NewBulk) normal() (NewBulk, error) {
	var errs []error
	if b.ID == "" {
		b.ID = uuid.Must(uuid.NewV7()).String()
	}
	if b.Rate == 0 {
		b.Rate = defaultBulkRate
	}
	b.Query.Cursor, b.Query.Limit = "", 0
	if b.Consumer == "" && b.Action != ActionDiscard {
		b.Consumer = b.Query.Consumer
	}
	if b.Consumer == "" && b.Action != ActionDiscard && b.Query.Fingerprint != "" {
		b.Consumer, _, _ = parseFingerprint(b.Query.Fingerprint)
	}
	errs = append(errs, text.Key("bulk operation: id", b.ID, 64))
	errs = append(errs, checkPace(b.Rate, b.Spread)...)
	errs = append(errs, b.checkAction()...)
	if _, err := b.Query.withDefaults(); err != nil {
		errs = append(errs, err)
	}
	return b, asInvalid(errors.Join(errs...))
}

// checkPace reports a rate or a spread that is out of bounds.
func checkPace(rate float64, spread time.Duration) (errs []error) {
	if rate < 0.1 || rate > 10_000 || math.IsNaN(rate) {
		errs = append(errs, fmt.Errorf("bulk operation: a rate of %v: it must be between 0.1 and 10000 events per second (0 means %d)", rate,
			defaultBulkRate))
	}
	if spread < 0 || spread > 7*24*time.Hour {
		errs = append(errs, fmt.Errorf("bulk operation: spread over %v: it must be between 0 and 7 days", spread))
	}
	return errs
}

// checkAction reports what the action of a request lacks.
func (b NewBulk) checkAction() (errs []error) {
	switch b.Action {
	case ActionRetry, ActionDiscard, ActionSkip:
		q := b.Query
		isNamed := q.Consumer != "" || q.Fingerprint != "" || q.AggregateID != "" || q.TraceID != "" || q.direct()
		if !isNamed && (q.Status == "" || q.Status == outbox.StatusSent) {
			errs = append(errs, fmt.Errorf("bulk operation: %s of events in any state: "+
				"name a status other than SENT, a consumer, a fingerprint, an aggregate or a trace", b.Action))
		}
	case ActionReplay, ActionReopen, ActionBackfill:
	default:
		errs = append(errs, fmt.Errorf("bulk operation: there is no action %q: "+
			"the actions are retry, reopen, skip, discard, replay and backfill", b.Action))
	}
	if b.Consumer == "" && slices.Contains([]Action{ActionSkip, ActionReplay, ActionReopen, ActionBackfill}, b.Action) {
		errs = append(errs, fmt.Errorf("bulk operation: %s needs a consumer", b.Action))
	}
	return errs
}

// DryRun counts the events that a bulk operation would be about.
func (o *Ops) DryRun(ctx context.Context, b NewBulk) (Count, error) {
	b, err := b.normal()
	if err != nil {
		return Count{}, err
	}
	return o.Count(ctx, b.Query)
}

// request is what the table keeps of an operation, as JSON.
type request struct {
	Query    Query         `json:"query"`
	Tenants  []int64       `json:"tenants,omitempty"`
	Consumer string        `json:"consumer,omitempty"`
	Rate     float64       `json:"rate"`
	Spread   time.Duration `json:"spreadNs"`
}

// bulks are the bulk operations of the deployment.
type bulks struct {
	rows    store.BulkOperations
	acts    *acts
	search  *searcher
	ob      *outbox.Outbox
	wake    chan struct{} // an operation has been started here
	timeout time.Duration
}

// StartBulk starts a bulk operation. With an id that exists it starts nothing and returns that one.
func (o *Ops) StartBulk(ctx context.Context, op Operation, b NewBulk) (Bulk, error) {
	return o.bulks.start(ctx, op, b)
}

// CancelBulk stops a bulk operation. What is done stays done.
func (o *Ops) CancelBulk(ctx context.Context, op Operation, id string) error {
	return o.bulks.setState(ctx, op, "cancel bulk", id, o.bulks.rows.Cancel, BulkRunning)
}

// ResumeBulk goes on with a bulk operation that was canceled or has failed, where it stopped.
func (o *Ops) ResumeBulk(ctx context.Context, op Operation, id string) error {
	err := o.bulks.setState(ctx, op, "resume bulk", id, o.bulks.rows.Resume, BulkCanceled, BulkFailed)
	if err == nil {
		o.bulks.wakeUp()
	}
	return err
}

// Bulk shows one bulk operation.
func (o *Ops) Bulk(ctx context.Context, id string) (Bulk, error) { return o.bulks.read(ctx, id) }

// Bulks lists bulk operations, newest first.
func (o *Ops) Bulks(ctx context.Context, cursor string, limit int) (Page[Bulk], error) {
	return o.bulks.list(ctx, cursor, limit)
}

func (s *bulks) start(ctx context.Context, op Operation, b NewBulk) (Bulk, error) {
	b, err := b.normal()
	if err == nil {
		err = asInvalid(op.Validate())
	}
	if err != nil {
		return Bulk{}, err
	}
	if old, err := s.read(ctx, b.ID); !errors.Is(err, ErrNotFound) {
		if err == nil && !isSame(old, b) {
			return Bulk{}, invalidf("ops: bulk operation %s is another one: choose a new id", text.Quote(b.ID))
		}
		return old, err
	}
	if err := s.mayReplay(ctx, b); err != nil {
		return Bulk{}, err
	}
	total, err := s.search.sharedCount(ctx, b.Query)
	if err != nil {
		return Bulk{}, err
	}
	doc, err := json.Marshal(request{Query: b.Query, Tenants: CallerOf(ctx).Tenants, Consumer: b.Consumer, Rate: b.Rate, Spread: b.Spread})
	if err != nil {
		return Bulk{}, err
	}
	err = s.acts.audited(ctx, op, "bulk "+string(b.Action), b.ID, string(doc), func(ctx context.Context, tx bun.Tx) error {
		filled, err := s.filledBy(ctx, tx, b)
		if err != nil {
			return err
		}
		return s.rows.Insert(ctx, tx, store.NewBulk{
			ID: b.ID, Action: string(b.Action), Request: string(doc), Actor: op.Actor, Reason: text.Clean(op.Reason, text.MaxError),
			Total: total.Count, HasMore: total.More, Backfilled: filled,
		})
	})
	made, readErr := s.read(ctx, b.ID)
	if readErr == nil { // perhaps by a twin
		s.wakeUp()
		return made, nil
	}
	return Bulk{}, errors.Join(err, readErr)
}

// filledBy is the key of the consumer that an operation gives past events to: until it is over, later ones wait behind them.
func (s *bulks) filledBy(ctx context.Context, tx bun.Tx, b NewBulk) (string, error) {
	if b.Action != ActionBackfill {
		return "", nil
	}
	key, known, err := store.NewOperations(s.acts.d).KeyOf(ctx, tx, b.Consumer)
	if err != nil || !known {
		return "", err
	}
	return key, nil
}

// wakeUp lets this process look for an operation at once.
func (s *bulks) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// isSame tells whether the operation is what is asked for. Times may be told as an age, which is another time when asked again.
func isSame(b Bulk, n NewBulk) bool {
	was, now := b.Query, n.Query
	if was.Since.IsZero() == now.Since.IsZero() && was.Until.IsZero() == now.Until.IsZero() {
		was.Since, was.Until, now.Since, now.Until = time.Time{}, time.Time{}, time.Time{}, time.Time{}
	}
	return b.Action == n.Action && b.Consumer == n.Consumer && was == now
}

// seesBulk tells whether the operation is about events of the caller only.
func (c Caller) seesBulk(b Bulk) bool {
	if !c.limited() {
		return true
	}
	if b.Query.TenantID != 0 {
		return c.Sees(b.Query.TenantID)
	}
	return len(b.Tenants) > 0 && !slices.ContainsFunc(b.Tenants, func(t int64) bool { return !c.Sees(t) })
}

// mayReplay refuses at once what would be refused event by event.
func (s *bulks) mayReplay(ctx context.Context, b NewBulk) error {
	if b.Action != ActionReplay {
		return nil
	}
	k, err := s.search.access.readRegistry(ctx)
	if err != nil {
		return err
	}
	if r, ok := k.find(b.Consumer); !ok || !r.replayable {
		return fmt.Errorf("ops: replay %s: %w", b.Consumer, ErrNotReplayable)
	}
	return nil
}

// stateSetter changes the state of an operation, if it is in one of some states.
type stateSetter func(ctx context.Context, tx bun.Tx, id string, from []string) (done bool, err error)

func (s *bulks) setState(ctx context.Context, op Operation, action, id string, set stateSetter, from ...BulkState) error {
	if _, err := s.read(ctx, id); CallerOf(ctx).limited() && err != nil {
		return err
	}
	states := make([]string, len(from))
	for i, f := range from {
		states[i] = string(f)
	}
	err := s.acts.audited(ctx, op, action, id, "", func(ctx context.Context, tx bun.Tx) error {
		done, err := set(ctx, tx, id, states)
		if err == nil && !done {
			err = ErrNotFound
		}
		return err
	})
	if !errors.Is(err, ErrNotFound) {
		return err
	}
	b, err := s.read(ctx, id)
	if err == nil {
		err = unfitf("ops: %s %s: it is %s, and must be %s", action, text.Quote(id), b.State, strings.Join(states, " or "))
	}
	return err
}

func (s *bulks) list(ctx context.Context, cursor string, limit int) (Page[Bulk], error) {
	limit, err := pageSize(limit)
	if err != nil {
		return Page[Bulk]{}, err
	}
	id, err := before(cursor)
	if err != nil {
		return Page[Bulk]{}, err
	}
	rows, err := view.BulksBefore(ctx, s.search.access.sql, id, limit+1, bulkTexts)
	if err != nil {
		return Page[Bulk]{}, fmt.Errorf("ops: read bulk operations: %w", err)
	}
	p := Page[Bulk]{Rows: []Bulk{}}
	if len(rows) > limit {
		rows = rows[:limit]
		p.Next = strconv.FormatInt(rows[limit-1].ID, 10)
	}
	for _, r := range rows {
		if b := newBulk(r); CallerOf(ctx).seesBulk(b) {
			p.Rows = append(p.Rows, b)
		}
	}
	return p, nil
}

func (s *bulks) read(ctx context.Context, id string) (Bulk, error) {
	rows, err := view.BulkOf(ctx, s.search.access.sql, id, bulkTexts)
	if err != nil {
		return Bulk{}, fmt.Errorf("ops: read bulk operations: %w", err)
	}
	none := unknownf("ops: there is no bulk operation %s", text.Quote(id))
	if len(rows) == 0 {
		return Bulk{}, none
	}
	b := newBulk(rows[0])
	if !CallerOf(ctx).seesBulk(b) {
		return Bulk{}, kind.Of(none, ErrOtherTenant)
	}
	return b, nil
}

// bulkTexts is how much of the texts of an operation is read.
var bulkTexts = view.Texts{Request: requestText, Other: listText} //nolint:gochecknoglobals // a constant

// newBulk makes an operation of its row.
func newBulk(r view.Bulk) Bulk {
	b := Bulk{
		ID: r.OperationID, Action: Action(r.Action), State: BulkState(r.State), Total: Count{Count: r.Total, More: r.HasMore},
		Seen: r.Seen, Done: r.Done, Passed: r.Passed, Actor: r.Actor, Reason: shown(r.Reason, listText), LockedBy: r.LockedBy,
		CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt, FinishedAt: r.FinishedAt, Error: shown(r.Error, listText),
	}
	var asked request
	err := json.Unmarshal([]byte(r.Request), &asked)
	if err != nil || (b.Action != ActionStart && len(checkPace(asked.Rate, asked.Spread)) > 0) {
		b.State, b.Error = BulkFailed, "what it was to do cannot be read" // nobody works on it, and it keeps nothing from the others
	}
	b.Query, b.Tenants, b.Consumer, b.Rate, b.Spread = asked.Query, asked.Tenants, asked.Consumer, asked.Rate, asked.Spread
	return b
}
