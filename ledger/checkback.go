package ledger

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"time"

	"connectrpc.com/connect"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/spi"
)

const (
	askEvery    = 2 * time.Second  // looks for reservations to ask about
	askFor      = 10 * time.Second // one call of a producer
	askLease    = 30 * time.Second // nobody else asks meanwhile
	askAtOnce   = 50
	longestWait = 10 * time.Minute // between two calls about one reservation
	keepEnded   = 7 * 24 * time.Hour
)

// checkURL refuses an address that the service must not call.
func (s reserving) checkURL(text string) error {
	if text == "" {
		return nil
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || len(text) > maxCheckURL:
		return errors.New("it is not a URL of at most 2048 bytes")
	case u.Scheme != "http" && u.Scheme != "https", u.User != nil, u.Host == "":
		return errors.New("write http:// or https://, a host, and no password")
	case !s.mayAsk(u):
		return fmt.Errorf("host %q may not be asked: the service lists those that may (--check-hosts)", u.Host)
	}
	return nil
}

func (s reserving) mayAsk(u *url.URL) bool {
	if len(s.cfg.CheckHosts) == 0 {
		ip := net.ParseIP(u.Hostname())
		return u.Hostname() == "localhost" || (ip != nil && ip.IsLoopback())
	}
	return slices.Contains(s.cfg.CheckHosts, u.Host) || slices.Contains(s.cfg.CheckHosts, u.Hostname())
}

// askBack asks the producers of reservations that have expired what has become of them, until ctx ends.
func (s reserving) askBack(ctx context.Context) {
	client := &http.Client{
		Timeout: askFor,
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse // its target might be a host that must not be asked
		},
	}
	defer client.CloseIdleConnections()
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	for {
		if err := s.askDue(ctx, client); err != nil && ctx.Err() == nil {
			s.cfg.Logger.WarnContext(ctx, "reservations could not be looked for; the next look tries again", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// askDue asks about those that are due now.
func (s reserving) askDue(ctx context.Context, client *http.Client) error {
	var due []spi.Reservation
	err := spi.InTx(ctx, s.db, func(ctx context.Context, tx bun.Tx) (err error) {
		due, err = s.booked.Due(ctx, tx, askLease, askAtOnce)
		return err
	})
	if err != nil {
		return err
	}
	done := make(chan error, len(due))
	for _, of := range due {
		go func() { done <- s.askOne(ctx, client, of) }()
	}
	var errs []error
	for range due {
		errs = append(errs, <-done)
	}
	return errors.Join(append(errs, s.booked.Forget(ctx, s.db, keepEnded))...)
}

// askOne asks one producer, and ends its reservation by what it says.
func (s reserving) askOne(ctx context.Context, client *http.Client, of spi.Reservation) error {
	state, err := s.ask(ctx, client, of)
	if err == nil {
		_, err = s.end(ctx, of.Token, state, false)
		if connect.CodeOf(err) == connect.CodeFailedPrecondition || err == nil {
			return nil // or somebody else was faster
		}
	}
	s.cfg.Logger.WarnContext(ctx, "a producer does not say what has become of a reservation; it is asked again", "eventId", of.EventID,
		"asked", of.Checks+1, "error", err)
	return s.booked.AskAgain(ctx, s.db, of.Token, min(time.Second<<min(of.Checks+1, 12), longestWait), err.Error())
}

// ask returns CONFIRMED or CANCELED, or an error that says why neither is known.
func (s reserving) ask(ctx context.Context, client *http.Client, of spi.Reservation) (string, error) {
	if of.CheckURL == "" {
		return "", errors.New("the event has no checkUrl: confirm or cancel the reservation")
	}
	if err := s.checkURL(of.CheckURL); err != nil { // the list of hosts may have changed
		return "", err
	}
	body, err := json.Marshal(map[string]string{"reservationToken": of.Token, "eventId": of.EventID})
	if err != nil {
		return "", err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, of.CheckURL, bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return "", errors.New("the producer does not answer")
	}
	defer resp.Body.Close()
	var answer struct {
		State string `json:"state"`
	}
	err = json.NewDecoder(io.LimitReader(resp.Body, 64<<10)).Decode(&answer)
	switch {
	case resp.StatusCode != http.StatusOK:
		return "", fmt.Errorf("the producer answered with status %d", resp.StatusCode)
	case err != nil:
		return "", errors.New(`the producer did not answer with JSON such as {"state": "CONFIRMED"}`)
	case answer.State != spi.Confirmed && answer.State != spi.Canceled:
		return "", fmt.Errorf("the producer answered %.40q", answer.State)
	}
	return answer.State, nil
}
