package ledger

import (
	"context"
	"errors"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/bluecone-go/bluecone/internal/spi"
	"github.com/bluecone-go/bluecone/ledger/ledgerv1"
)

// asking answers questions that change nothing.
type asking struct{ *part }

// QueryConsumption tells what has become of an event.
func (s asking) QueryConsumption(ctx context.Context, req *connect.Request[ledgerv1.QueryConsumptionRequest],
) (*connect.Response[ledgerv1.QueryConsumptionResponse], error) {
	if err := given("eventId", req.Msg.GetEventId()); err != nil {
		return nil, err
	}
	status, rows, err := spi.Consumptions(ctx, s.db, req.Msg.GetEventId())
	if err != nil {
		return nil, s.failed(ctx, "QueryConsumption", err)
	}
	if status == "" && len(rows) == 0 {
		return nil, connect.NewError(connect.CodeNotFound, errors.New("eventId: there is no such event"))
	}
	out := &ledgerv1.QueryConsumptionResponse{Status: status}
	for _, r := range rows {
		out.Consumers = append(out.Consumers, &ledgerv1.Consumption{
			Consumer: r.Consumer, Status: string(r.Status), Attempts: int32(r.Attempts),
			Result: []byte(r.Result), Error: r.Error,
		})
	}
	return connect.NewResponse(out), nil
}

// QueryLag tells what a consumer has before it.
func (s asking) QueryLag(ctx context.Context, req *connect.Request[ledgerv1.QueryLagRequest],
) (*connect.Response[ledgerv1.QueryLagResponse], error) {
	if err := mayConsume(ctx, req.Msg.GetConsumer()); err != nil {
		return nil, err
	}
	lag, err := spi.BacklogOf(ctx, s.db, req.Msg.GetConsumer())
	if err != nil {
		return nil, s.failed(ctx, "QueryLag", err)
	}
	return connect.NewResponse(&ledgerv1.QueryLagResponse{
		Pending: lag.Waiting, OldestAge: durationpb.New(lag.Oldest), Dead: lag.Dead,
	}), nil
}
