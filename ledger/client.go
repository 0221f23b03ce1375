package ledger

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/bluecone-go/bluecone/ledger/ledgerv1"
	"github.com/bluecone-go/bluecone/ledger/ledgerv1/ledgerv1connect"
)

// ClientConfig configures a [Client].
type ClientConfig struct {
	// URL is the address of the service, such as "https://ledger.internal:8085". Required.
	URL string
	// Token is the caller's bearer token. Default: none, for a caller that its certificate names.
	Token string
	// HTTP sends the requests: with a client certificate, say. Its Timeout must be 0 or longer than a Fetch waits. Default: one of
	// its own with as many connections as there are calls at a time.
	HTTP *http.Client
}

// Client calls the service, with the messages of its contract. Errors are connect's: ask connect.CodeOf. A call to a service that is
// unavailable is repeated for a second or two, which is safe: every call may be repeated. So is one that comes too early for the
// caller's rate, after the time that the service asks for. Each call has a deadline, 15 s beside
// the time that a Fetch waits, unless its context has an earlier one. A Client is safe for concurrent use.
type Client struct{ calls ledgerv1connect.LedgerClient }

// NewClient returns a client. It connects to nothing.
func NewClient(cfg ClientConfig) (*Client, error) {
	if u, err := url.Parse(cfg.URL); err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return nil, errors.New("ledger.ClientConfig.URL: write http:// or https://, and a host")
	}
	if strings.ContainsAny(cfg.Token, "\r\n\x00") {
		return nil, errors.New("ledger.ClientConfig.Token has a line break: read it without the end of its line")
	}
	if cfg.HTTP == nil {
		transport := http.DefaultTransport.(*http.Transport).Clone() //nolint:forcetypeassert // net/http says so
		transport.MaxIdleConnsPerHost = 64
		cfg.HTTP = &http.Client{Transport: transport}
	}
	bearer := connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			if cfg.Token != "" {
				req.Header().Set("Authorization", "Bearer "+cfg.Token)
			}
			return next(ctx, req)
		}
	})
	return &Client{ledgerv1connect.NewLedgerClient(cfg.HTTP, strings.TrimSuffix(cfg.URL, "/"), connect.WithInterceptors(bearer))}, nil
}

const (
	callFor    = 15 * time.Second
	repeats    = 5
	firstPause = 50 * time.Millisecond
)

// call makes one call, and repeats it while the service is unavailable, or says that it comes too early.
func call[Req, Res any](ctx context.Context, wait time.Duration, m *Req,
	send func(context.Context, *connect.Request[Req]) (*connect.Response[Res], error),
) (*Res, error) {
	ctx, cancel := context.WithTimeout(ctx, wait+callFor)
	defer cancel()
	for try := 0; ; try++ {
		res, err := send(ctx, connect.NewRequest(m))
		if err == nil {
			return res.Msg, nil
		}
		pause, isEarly := askedToWait(err)
		if !isEarly {
			pause = firstPause << try
		}
		if !isEarly && connect.CodeOf(err) != connect.CodeUnavailable || try == repeats {
			return nil, fmt.Errorf("ledger: %w", err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, fmt.Errorf("ledger: %w", err)
		}
	}
}

// Publish saves events, all or none. An event with neither an id nor a key is given an id first.
func (c *Client) Publish(ctx context.Context, m *ledgerv1.PublishRequest) (*ledgerv1.PublishResponse, error) {
	for _, e := range m.GetEvents() {
		if err := identify(e); err != nil {
			return nil, err
		}
	}
	return call(ctx, 0, m, c.calls.Publish)
}

// Reserve keeps an event that nobody sees until it is confirmed; see [Producer] for one that follows a transaction. An event with
// neither an id nor a key is given an id first.
func (c *Client) Reserve(ctx context.Context, m *ledgerv1.ReserveRequest) (*ledgerv1.ReserveResponse, error) {
	if err := identify(m.GetEvent()); err != nil {
		return nil, err
	}
	return call(ctx, 0, m, c.calls.Reserve)
}

// Confirm saves a reserved event.
func (c *Client) Confirm(ctx context.Context, m *ledgerv1.ConfirmRequest) (*ledgerv1.ConfirmResponse, error) {
	return call(ctx, 0, m, c.calls.Confirm)
}

// Cancel gives a reserved event up.
func (c *Client) Cancel(ctx context.Context, m *ledgerv1.CancelRequest) (*ledgerv1.CancelResponse, error) {
	return call(ctx, 0, m, c.calls.Cancel)
}

// QueryReservation tells the state of a reservation.
func (c *Client) QueryReservation(ctx context.Context, m *ledgerv1.QueryReservationRequest) (*ledgerv1.QueryReservationResponse, error) {
	return call(ctx, 0, m, c.calls.QueryReservation)
}

// BeginConsume asks whether a consumer may handle an event now.
func (c *Client) BeginConsume(ctx context.Context, m *ledgerv1.BeginConsumeRequest) (*ledgerv1.BeginConsumeResponse, error) {
	return call(ctx, 0, m, c.calls.BeginConsume)
}

// Heartbeat renews a lease.
func (c *Client) Heartbeat(ctx context.Context, m *ledgerv1.HeartbeatRequest) (*ledgerv1.HeartbeatResponse, error) {
	return call(ctx, 0, m, c.calls.Heartbeat)
}

// FinishConsume ends a lease.
func (c *Client) FinishConsume(ctx context.Context, m *ledgerv1.FinishConsumeRequest) (*ledgerv1.FinishConsumeResponse, error) {
	return call(ctx, 0, m, c.calls.FinishConsume)
}

// Fetch registers a consumer and waits for deliveries to it. Deliveries of an answer that is lost on its way come again when their
// leases end.
func (c *Client) Fetch(ctx context.Context, m *ledgerv1.FetchRequest) (*ledgerv1.FetchResponse, error) {
	return call(ctx, m.GetWait().AsDuration(), m, c.calls.Fetch)
}

// Ack ends many leases.
func (c *Client) Ack(ctx context.Context, m *ledgerv1.AckRequest) (*ledgerv1.AckResponse, error) {
	return call(ctx, 0, m, c.calls.Ack)
}

// QueryConsumption tells what has become of an event.
func (c *Client) QueryConsumption(ctx context.Context, m *ledgerv1.QueryConsumptionRequest) (*ledgerv1.QueryConsumptionResponse, error) {
	return call(ctx, 0, m, c.calls.QueryConsumption)
}

// QueryLag tells what a consumer has before it.
func (c *Client) QueryLag(ctx context.Context, m *ledgerv1.QueryLagRequest) (*ledgerv1.QueryLagResponse, error) {
	return call(ctx, 0, m, c.calls.QueryLag)
}
