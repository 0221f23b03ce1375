package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/bluecone-go/bluecone/internal/spi"
	"github.com/bluecone-go/bluecone/ledger/ledgerv1"
)

// consuming leases deliveries to callers.
type consuming struct {
	*part

	remote  *spi.RemoteDeliveries
	waiting *waiting
}

// mayConsume refuses a consumer that the caller may not act as, or that is no name.
func mayConsume(ctx context.Context, consumer string) error {
	if err := given("consumer", consumer); err != nil {
		return err
	}
	switch {
	case len(consumer) > maxName:
		return invalid("consumer has %d bytes, the limit is %d", len(consumer), maxName)
	case !callerOf(ctx).MayConsume(consumer):
		return connect.NewError(connect.CodePermissionDenied, errors.New("consumer: "+callerOf(ctx).Name+" may not act as it"))
	}
	return nil
}

// BeginConsume asks whether a consumer may handle an event now.
func (s consuming) BeginConsume(ctx context.Context, req *connect.Request[ledgerv1.BeginConsumeRequest],
) (*connect.Response[ledgerv1.BeginConsumeResponse], error) {
	if err := mayConsume(ctx, req.Msg.GetConsumer()); err != nil {
		return nil, err
	}
	if err := given("eventId", req.Msg.GetEventId()); err != nil {
		return nil, err
	}
	d, err := s.remote.Begin(ctx, req.Msg.GetConsumer(), req.Msg.GetEventId())
	switch {
	case errors.Is(err, spi.ErrRemoteUnknown):
		return nil, connect.NewError(connect.CodeNotFound, errors.New("eventId: there is no such event"))
	case errors.Is(err, spi.ErrRemoteDead):
		return nil, connect.NewError(connect.CodeFailedPrecondition, err)
	case err != nil:
		return nil, s.failed(ctx, "BeginConsume", err)
	case d.IsGo:
		return connect.NewResponse(&ledgerv1.BeginConsumeResponse{
			Decision: "GO", ConsumeToken: consumeToken(callerOf(ctx), d.Lease), LeaseUntil: timestamppb.New(d.Until),
		}), nil
	case d.IsDone:
		return connect.NewResponse(&ledgerv1.BeginConsumeResponse{Decision: "ALREADY_DONE", Result: []byte(d.Result)}), nil
	}
	return connect.NewResponse(&ledgerv1.BeginConsumeResponse{Decision: "IN_PROGRESS", RetryAfter: durationpb.New(d.RetryAfter)}), nil
}

// Heartbeat renews a lease.
func (s consuming) Heartbeat(ctx context.Context, req *connect.Request[ledgerv1.HeartbeatRequest],
) (*connect.Response[ledgerv1.HeartbeatResponse], error) {
	lease, err := leaseOf(callerOf(ctx), req.Msg.GetConsumeToken())
	if err != nil {
		return nil, err
	}
	until, err := s.remote.Heartbeat(ctx, lease)
	if err != nil {
		return nil, s.lost(ctx, "Heartbeat", err)
	}
	return connect.NewResponse(&ledgerv1.HeartbeatResponse{LeaseUntil: timestamppb.New(until)}), nil
}

// lost is the error of a call with a token that counts no more.
func (s consuming) lost(ctx context.Context, call string, err error) error {
	switch {
	case errors.Is(err, spi.ErrRemoteLost):
		return connect.NewError(connect.CodeAborted, errors.New("consumeToken: the lease is lost; nothing was changed"))
	case errors.Is(err, spi.ErrRemoteUnknown):
		return errNoSuchToken
	}
	return s.failed(ctx, call, err)
}

// FinishConsume ends a lease.
func (s consuming) FinishConsume(ctx context.Context, req *connect.Request[ledgerv1.FinishConsumeRequest],
) (*connect.Response[ledgerv1.FinishConsumeResponse], error) {
	f, err := finishOf(ctx, req.Msg)
	if err != nil {
		return nil, err
	}
	state, err := s.finish(ctx, f)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&ledgerv1.FinishConsumeResponse{State: state}), nil
}

var outcomes = []string{"SUCCESS", "FAILED", "PERMANENT", "SKIPPED"} //nolint:gochecknoglobals // a constant list

// finishOf is what a caller says of a delivery.
func finishOf(ctx context.Context, m *ledgerv1.FinishConsumeRequest) (spi.RemoteFinish, error) {
	f := spi.RemoteFinish{
		Outcome: spi.RemoteOutcome(m.GetOutcome()), Result: string(m.GetResult()), Error: m.GetError(), By: callerOf(ctx).Name,
	}
	if !slices.Contains(outcomes, m.GetOutcome()) {
		return f, invalid("outcome is %.40q: it must be SUCCESS, FAILED, PERMANENT or SKIPPED", m.GetOutcome())
	}
	if len(f.Result) > maxResult {
		return f, invalid("result has %d bytes, the limit is %d", len(f.Result), maxResult)
	}
	if err := f.CheckResult(maxResultDepth); err != nil {
		return f, invalid("result must be JSON: %w", err)
	}
	var err error
	f.Lease, err = leaseOf(callerOf(ctx), m.GetConsumeToken())
	return f, err
}

func (s consuming) finish(ctx context.Context, f spi.RemoteFinish) (string, error) {
	state, err := s.remote.Finish(ctx, f)
	if err != nil {
		return "", s.lost(ctx, "FinishConsume", err)
	}
	s.waiting.look()
	return string(state), nil
}

// Ack is FinishConsume for many.
func (s consuming) Ack(ctx context.Context, req *connect.Request[ledgerv1.AckRequest]) (*connect.Response[ledgerv1.AckResponse], error) {
	acks := req.Msg.GetAcks()
	if len(acks) == 0 || len(acks) > maxFetch {
		return nil, invalid("acks has %d entries: send 1 to %d", len(acks), maxFetch)
	}
	states := make([]*ledgerv1.AckState, len(acks))
	var plain []spi.RemoteFinish // those that succeed without a result, and where they stand
	var at []int
	for i, a := range acks {
		f, err := finishOf(ctx, a)
		switch {
		case err != nil:
			states[i] = refusedAck(err)
		case f.Outcome == "SUCCESS" && f.Result == "":
			plain, at = append(plain, f), append(at, i)
		default:
			states[i] = s.ackOne(ctx, f)
		}
	}
	done := false
	if len(plain) > 1 {
		var err error
		if done, err = s.remote.FinishAll(ctx, plain); err != nil {
			return nil, s.failed(ctx, "Ack", err)
		}
	}
	for n, i := range at {
		if states[i] = (&ledgerv1.AckState{State: "SUCCESS"}); !done {
			states[i] = s.ackOne(ctx, plain[n])
		}
	}
	s.waiting.look()
	return connect.NewResponse(&ledgerv1.AckResponse{States: states}), nil
}

func (s consuming) ackOne(ctx context.Context, f spi.RemoteFinish) *ledgerv1.AckState {
	state, err := s.finish(ctx, f)
	if err != nil {
		return refusedAck(err)
	}
	return &ledgerv1.AckState{State: state}
}

func refusedAck(err error) *ledgerv1.AckState {
	message := err.Error()
	if ce, ok := errors.AsType[*connect.Error](err); ok {
		message = ce.Message()
	}
	return &ledgerv1.AckState{Error: &ledgerv1.AckError{Code: connect.CodeOf(err).String(), Message: message}}
}

// Fetch registers a consumer and waits for deliveries to it.
func (s consuming) Fetch(ctx context.Context, req *connect.Request[ledgerv1.FetchRequest],
) (*connect.Response[ledgerv1.FetchResponse], error) {
	m := req.Msg
	limit, wait, err := checkFetch(ctx, m)
	if err != nil {
		return nil, err
	}
	if err := s.remote.Register(ctx, m.GetConsumer(), m.GetEventTypes()); err != nil {
		return nil, s.failed(ctx, "Fetch", err)
	}
	ctx, cancel := context.WithTimeout(ctx, wait+maxWait)
	defer cancel()
	end := time.NewTimer(wait)
	defer end.Stop()
	for looks := wait == 0 || !s.waiting.isIdle(m.GetConsumer()); ; looks = true {
		due := s.waiting.join(m.GetConsumer())
		if due == nil {
			return nil, connect.NewError(connect.CodeUnavailable, errors.New("the service is shutting down: call another instance"))
		}
		var ds []spi.RemoteDelivery
		if looks {
			ds, err = s.remote.Fetch(ctx, m.GetConsumer(), m.GetEventTypes(), limit, maxAnswer)
			if err != nil {
				err = s.failed(ctx, "Fetch", err)
			}
		}
		isOver := err != nil || len(ds) > 0
		if !isOver {
			isOver, err = s.waiting.wait(ctx, m.GetConsumer(), due, looks, end.C)
		}
		s.waiting.leave(m.GetConsumer(), due)
		switch {
		case err != nil:
			return nil, err
		case isOver:
			return connect.NewResponse(&ledgerv1.FetchResponse{Deliveries: deliveriesOf(callerOf(ctx), ds)}), nil
		}
	}
}

func checkFetch(ctx context.Context, m *ledgerv1.FetchRequest) (limit int, wait time.Duration, err error) {
	if err := mayConsume(ctx, m.GetConsumer()); err != nil {
		return 0, 0, err
	}
	limit, wait = int(m.GetMax()), m.GetWait().AsDuration()
	if limit == 0 {
		limit = 100
	}
	switch types := m.GetEventTypes(); {
	case limit < 0 || limit > maxFetch:
		return 0, 0, invalid("max is %d: it must be between 1 and %d", limit, maxFetch)
	case wait < 0 || wait > maxWait:
		return 0, 0, invalid("wait is %v: it must be at most %v", wait, maxWait)
	case len(types) == 0 || len(types) > maxTypes:
		return 0, 0, invalid("eventTypes has %d entries: send 1 to %d", len(types), maxTypes)
	default:
		for i, t := range types {
			if len(t) > maxName {
				return 0, 0, invalid("eventTypes[%d] has %d bytes, the limit is %d", i, len(t), maxName)
			}
			if err := given(fmt.Sprintf("eventTypes[%d]", i), t); err != nil {
				return 0, 0, err
			}
		}
	}
	return limit, wait, nil
}

func deliveriesOf(c Caller, ds []spi.RemoteDelivery) []*ledgerv1.Delivery {
	out := make([]*ledgerv1.Delivery, len(ds))
	for i, d := range ds {
		e := d.Event
		out[i] = &ledgerv1.Delivery{
			ConsumeToken: consumeToken(c, d.Lease), LeaseUntil: timestamppb.New(d.Until), Attempt: int32(d.Attempt),
			Event: &ledgerv1.Event{
				EventType: e.Type, AggregateType: e.AggregateType, AggregateId: e.AggregateID, Payload: e.Payload, EventId: e.ID,
				TenantId: e.TenantID, SchemaVersion: int32(e.SchemaVersion), Metadata: e.Metadata,
			},
		}
	}
	return out
}
