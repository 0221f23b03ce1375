package relaytest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/relay"
)

// adapter is both ends for the broker in memory. Its flaws are what the suite has to notice.
type adapter struct {
	url   *url.URL
	flaws flaws

	mu     sync.Mutex
	conn   net.Conn // nil without one
	closed bool
}

type flaws struct {
	ignoresAnswer  bool // a message counts as confirmed when it has been sent
	acksFirst      bool // messages are acknowledged before they are landed
	skipsFailed    bool // what could not be landed is passed over
	forgetsHeaders bool
	neverAsks      bool // whether there is room
	leaks          bool // a goroutine
	dropsLarge     bool // what is too large counts as confirmed
	givesUp        bool // Receive ends when the broker is away
	shuffles       bool // the order of a batch
	wrongIsAway    bool // refusals are taken for a broker that is away
}

func newAdapter(raw string, f flaws) (*adapter, error) {
	u, err := relay.ParseURL(raw, "memory://host:port/log")
	return &adapter{url: u, flaws: f}, err
}

func (a *adapter) Connect(ctx context.Context) error {
	_, err := a.ask(ctx, request{Op: "open"})
	return err
}

func (a *adapter) Broker() string { return "memory://" + a.url.Host + a.url.Path }

func (a *adapter) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	a.drop()
	if a.flaws.leaks {
		go func() { select {} }()
	}
	return nil
}

// drop needs a.mu.
func (a *adapter) drop() {
	if a.conn != nil {
		_ = a.conn.Close() // it is of no use any more
		a.conn = nil
	}
}

// ask sends a request and waits for its answer, one at a time.
func (a *adapter) ask(ctx context.Context, r request) (answer, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return answer{}, errors.New("closed")
	}
	if a.conn == nil {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", a.url.Host)
		if err != nil {
			return answer{}, err
		}
		a.conn = conn
		password, _ := a.url.User.Password()
		opened, err := a.exchange(ctx, request{Op: "open", Password: password, Log: strings.TrimPrefix(a.url.Path, "/")})
		switch {
		case err != nil:
			return answer{}, err
		case opened.Error != "" && a.flaws.wrongIsAway:
			a.drop()
			return answer{}, errors.New("away")
		case opened.Error != "":
			a.drop()
			return answer{}, fmt.Errorf("%w: wrong password or log", relay.ErrRefused)
		}
	}
	if r.Op == "open" {
		return answer{}, nil
	}
	return a.exchange(ctx, r)
}

// exchange needs a.mu.
func (a *adapter) exchange(ctx context.Context, r request) (got answer, err error) {
	conn := a.conn
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	if err = json.NewEncoder(conn).Encode(r); err == nil && (!a.flaws.ignoresAnswer || r.Op != "publish") {
		err = json.NewDecoder(conn).Decode(&got)
	}
	if err != nil {
		a.drop()
	}
	return got, err
}

func (a *adapter) Publish(ctx context.Context, ms []relay.Message) []error {
	errs := make([]error, len(ms))
	for i, m := range ms {
		if a.flaws.forgetsHeaders {
			m.Headers = nil
		}
		got, err := a.ask(ctx, request{Op: "publish", Messages: []relay.Message{m}})
		switch {
		case got.Error == "too large" && !a.flaws.dropsLarge:
			errs[i] = bus.Permanent(errors.New(got.Error))
		case err != nil:
			errs[i] = bus.Unavailable(err)
		}
	}
	return errs
}

func (a *adapter) Receive(ctx context.Context, in relay.Sink) error {
	for first := true; ctx.Err() == nil; {
		err := a.turn(ctx, in)
		switch {
		case err == nil:
			first = false
		case first && errors.Is(err, relay.ErrRefused), a.flaws.givesUp && ctx.Err() == nil:
			return err
		default:
			in.Away(err)
			select {
			case <-ctx.Done():
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
	return nil
}

// turn lands one batch.
func (a *adapter) turn(ctx context.Context, in relay.Sink) error {
	if err := a.Connect(ctx); err != nil {
		return err
	}
	if !a.flaws.neverAsks {
		if err := in.Ready(ctx, "log"); err != nil {
			return err
		}
	}
	got, err := a.ask(ctx, request{Op: "fetch"})
	if err != nil || len(got.Messages) == 0 {
		return errors.Join(err, errors.New("nothing there"))
	}
	var batch []relay.Received
	for i, m := range got.Messages {
		r := relay.Received{
			Topic: "log", Partition: "log", Offset: strconv.Itoa(got.Offset + i), Attributes: m.Attributes, Headers: m.Headers,
			ContentType: m.ContentType, Body: m.Body,
		}
		if batch = append(batch, r); a.flaws.shuffles {
			batch[i], batch[0] = batch[0], batch[i]
		}
	}
	ack := request{Op: "ack", Offset: got.Offset + len(batch)}
	if a.flaws.acksFirst {
		_, err = a.ask(ctx, ack)
	}
	if landed := in.Land(ctx, batch); landed != nil && !a.flaws.skipsFailed {
		return landed
	}
	if !a.flaws.acksFirst {
		_, err = a.ask(ctx, ack)
	}
	return err
}
