package points

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/uptrace/bun"
)

// Accounts is what other modules ask of points, whether they are in this process or in one of their own.
type Accounts interface {
	// Open makes a user's account and grants its first points.
	Open(ctx context.Context, tx bun.Tx, userID string, points int64) error
	// Get reads a user's balance.
	Get(ctx context.Context, idb bun.IDB, userID string) (Balance, error)
}

// Client asks points that have left the process. It takes no part in transactions: an account that is opened stays, also if the
// transaction of the one who asked for it is rolled back.
type Client struct{ base string }

// callFor is how long one request may take.
const callFor = 5 * time.Second

// NewClient returns a client of the service at a URL. It connects to nothing.
func NewClient(base string) (*Client, error) {
	if u, err := url.Parse(base); err != nil || u.Scheme != "http" || u.Host == "" {
		return nil, errors.New("the points need an address such as http://127.0.0.1:8091")
	}
	return &Client{strings.TrimSuffix(base, "/")}, nil
}

// Open is part of Accounts. It may be repeated.
func (c *Client) Open(ctx context.Context, _ bun.Tx, userID string, points int64) error {
	return c.call(ctx, http.MethodPut, userID, Opening{points}, nil)
}

// Opening is what an account begins with.
type Opening struct {
	Points int64 `json:"points"`
}

// Get is part of Accounts.
func (c *Client) Get(ctx context.Context, _ bun.IDB, userID string) (b Balance, err error) {
	err = c.call(ctx, http.MethodGet, userID, nil, &b)
	return b, err
}

func (c *Client) call(ctx context.Context, method, userID string, body, out any) error {
	ctx, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+"/users/"+url.PathEscape(userID)+"/points", bytes.NewReader(text))
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("the points service does not answer: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("points of %s: the points service answers with status %d", userID, resp.StatusCode)
	}
	if out == nil {
		return nil
	}
	return json.NewDecoder(resp.Body).Decode(out)
}
