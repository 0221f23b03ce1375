// Package browser looks at the console with a real browser: its tests drive a headless Chromium, and
// the command screenshots takes the pictures of the documentation. It is a module of its own, so that
// nobody who uses the console is given any of it.
package browser

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
)

// Find returns the path of a Chromium or Chrome, "" if there is none.
func Find() string {
	names := []string{os.Getenv("BLUECONE_TEST_CHROMIUM"), "chromium", "chromium-browser", "google-chrome", "google-chrome-stable"}
	for _, name := range names {
		if path, err := exec.LookPath(name); name != "" && err == nil {
			return path
		}
	}
	return ""
}

// Chrome is a running browser. It is spoken to in the DevTools protocol, over a pipe: no port is opened.
type Chrome struct {
	cmd  *exec.Cmd
	dir  string
	in   io.WriteCloser
	done chan struct{}

	mu      sync.Mutex
	last    int
	waiting map[int]chan message
	tabs    map[string]*Tab // by session
	ended   error
}

// message is what goes through the pipe, in either direction.
type message struct {
	ID      int             `json:"id,omitempty"`
	Session string          `json:"sessionId,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   *struct {
		Message string `json:"message"`
	} `json:"error,omitempty"`
}

// LANHost is a name of this machine to which a browser speaks as to any other machine: without TLS it is not trusted.
const LANHost = "shop.lan.test"

// Start starts a browser with an empty profile in dir.
func Start(path, dir string) (*Chrome, error) {
	theirIn, ourOut, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	ourIn, theirOut, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	// It is ended by Close, not by a context: it lives longer than any one call.
	cmd := exec.Command(path, "--headless", "--no-sandbox", "--disable-gpu", //nolint:noctx // see above
		"--disable-quic", "--no-first-run", "--disable-background-networking",
		"--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe",
		"--host-resolver-rules=MAP "+LANHost+" 127.0.0.1", "--user-data-dir="+filepath.Join(dir, "profile"), "about:blank")
	cmd.ExtraFiles = []*os.File{theirIn, theirOut} // 3 and 4, as the pipe wants it
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	if err := errors.Join(theirIn.Close(), theirOut.Close()); err != nil {
		return nil, err
	}
	c := &Chrome{cmd: cmd, dir: dir, in: ourOut, done: make(chan struct{}), waiting: make(map[int]chan message), tabs: make(map[string]*Tab)}
	go c.read(ourIn)
	return c, nil
}

// Close ends the browser.
func (c *Chrome) Close() error {
	err := errors.Join(c.in.Close(), c.cmd.Process.Kill())
	_ = c.cmd.Wait() // killed
	<-c.done
	return err
}

func (c *Chrome) read(from io.ReadCloser) {
	defer close(c.done)
	defer func() { _ = from.Close() }() // it is at its end
	for r := bufio.NewReader(from); ; {
		line, err := r.ReadBytes(0)
		if err != nil {
			c.end(err)
			return
		}
		var m message
		if json.Unmarshal(line[:len(line)-1], &m) != nil {
			continue // nothing that anybody waits for
		}
		c.mu.Lock()
		answer, tab := c.waiting[m.ID], c.tabs[m.Session]
		delete(c.waiting, m.ID)
		c.mu.Unlock()
		if m.ID != 0 && answer != nil {
			answer <- m
		} else if tab != nil {
			tab.heard(m)
		}
	}
}

// end fails everything that waits.
func (c *Chrome) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = fmt.Errorf("the browser has ended: %w", err)
	for id, answer := range c.waiting {
		close(answer)
		delete(c.waiting, id)
	}
}

// call sends a command and waits for its answer.
func (c *Chrome) call(ctx context.Context, session, method string, params, result any) error {
	raw, err := json.Marshal(params)
	if err != nil {
		return err
	}
	answer := make(chan message, 1)
	c.mu.Lock()
	if c.ended != nil {
		defer c.mu.Unlock()
		return c.ended
	}
	c.last++
	id := c.last
	c.waiting[id] = answer
	line, err := json.Marshal(message{ID: id, Session: session, Method: method, Params: raw})
	if err == nil {
		_, err = c.in.Write(append(line, 0))
	}
	c.mu.Unlock()
	if err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	select {
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", method, ctx.Err())
	case m, ok := <-answer:
		switch {
		case !ok:
			return fmt.Errorf("%s: the browser has ended", method)
		case m.Error != nil:
			return fmt.Errorf("%s: %s", method, m.Error.Message)
		case result == nil:
			return nil
		}
		return json.Unmarshal(m.Result, result)
	}
}
