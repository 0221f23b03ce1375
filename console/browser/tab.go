package browser

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"
)

// patience is how long a page may take to become what is waited for.
const patience = 2 * time.Minute

// Tab is a page of the browser, with cookies and storage of its own.
type Tab struct {
	c       *Chrome
	ctx     context.Context //nolint:containedctx // a tab lives as long as what opened it
	session string

	mu       sync.Mutex
	requests []string // addresses of everything that was fetched
	problems []string // what the page complained about: errors, and what its policy forbade
}

// Look is how a tab shows pages.
type Look struct {
	Width, Height int     // Default: 1440 × 900.
	Scale         float64 // Default: 1.
	Dark          bool
	Language      string // of the browser. Default: en.
	NoScript      bool   // JavaScript is off
}

// params are those of a command.
type params = map[string]any

// Open opens a tab.
func (c *Chrome) Open(ctx context.Context, look Look) (*Tab, error) {
	var made struct {
		BrowserContextID string `json:"browserContextId"`
		TargetID         string `json:"targetId"`
		SessionID        string `json:"sessionId"`
	}
	if err := c.call(ctx, "", "Target.createBrowserContext", params{}, &made); err != nil {
		return nil, err
	}
	if err := c.call(ctx, "", "Target.createTarget", params{"url": "about:blank", "browserContextId": made.BrowserContextID},
		&made); err != nil {
		return nil, err
	}
	if err := c.call(ctx, "", "Target.attachToTarget", params{"targetId": made.TargetID, "flatten": true}, &made); err != nil {
		return nil, err
	}
	t := &Tab{c: c, ctx: ctx, session: made.SessionID}
	c.mu.Lock()
	c.tabs[t.session] = t
	c.mu.Unlock()
	return t, t.setUp(look)
}

func (t *Tab) setUp(look Look) error {
	if look.Width == 0 {
		look.Width, look.Height = 1440, 900
	}
	if look.Scale == 0 {
		look.Scale = 1
	}
	if look.Language == "" {
		look.Language = "en"
	}
	scheme := "light"
	if look.Dark {
		scheme = "dark"
	}
	return errors.Join(
		t.Call("Page.enable", params{}, nil), t.Call("Network.enable", params{}, nil), t.Call("Runtime.enable", params{}, nil),
		t.Call("Log.enable", params{}, nil),
		t.Call("Emulation.setDeviceMetricsOverride", params{
			"width": look.Width, "height": look.Height, "deviceScaleFactor": look.Scale, "mobile": false,
		}, nil),
		t.Call("Emulation.setEmulatedMedia", params{
			"features": []params{{"name": "prefers-color-scheme", "value": scheme}, {"name": "prefers-reduced-motion", "value": "reduce"}},
		}, nil),
		t.Call("Network.setExtraHTTPHeaders", params{"headers": params{"Accept-Language": look.Language}}, nil),
		t.Call("Emulation.setScriptExecutionDisabled", params{"value": look.NoScript}, nil),
	)
}

// Close closes the tab.
func (t *Tab) Close() error { return t.Call("Page.close", params{}, nil) }

// Call sends a command of the DevTools protocol.
func (t *Tab) Call(method string, with, result any) error {
	ctx, cancel := context.WithTimeout(t.ctx, patience)
	defer cancel()
	return t.c.call(ctx, t.session, method, with, result)
}

// heard notes what the page fetches, and what it complains about.
func (t *Tab) heard(m message) {
	var p struct {
		Request struct{ URL string }
		Entry   struct{ Level, Text, URL string }
		Type    string
		Args    []struct {
			Value       any
			Description string
		}
		ExceptionDetails struct {
			Text      string
			Exception struct{ Description string }
		}
	}
	if json.Unmarshal(m.Params, &p) != nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch m.Method {
	case "Network.requestWillBeSent":
		t.requests = append(t.requests, p.Request.URL)
	case "Log.entryAdded":
		if p.Entry.Level == "error" {
			t.problems = append(t.problems, p.Entry.Text+" "+p.Entry.URL)
		}
	case "Runtime.exceptionThrown":
		t.problems = append(t.problems, p.ExceptionDetails.Text+" "+p.ExceptionDetails.Exception.Description)
	}
}

// Requests lists the addresses of everything that the tab has fetched.
func (t *Tab) Requests() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]string(nil), t.requests...)
}

// Problems lists what the pages have complained about.
func (t *Tab) Problems() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]string(nil), t.problems...)
}

// Eval evaluates an expression in the page.
func (t *Tab) Eval(expression string, result any) error {
	var answer struct {
		Result struct {
			Value json.RawMessage `json:"value"`
		} `json:"result"`
		ExceptionDetails *struct {
			Text      string `json:"text"`
			Exception struct {
				Description string `json:"description"`
			} `json:"exception"`
		} `json:"exceptionDetails"`
	}
	err := t.Call("Runtime.evaluate", params{"expression": expression, "returnByValue": true, "awaitPromise": true, "userGesture": true},
		&answer)
	switch {
	case err != nil:
		return err
	case answer.ExceptionDetails != nil:
		return fmt.Errorf("%s: %s %s", expression, answer.ExceptionDetails.Text, answer.ExceptionDetails.Exception.Description)
	case result == nil || len(answer.Result.Value) == 0:
		return nil
	}
	return json.Unmarshal(answer.Result.Value, result)
}

// Until waits until an expression is true.
func (t *Tab) Until(expression string) error {
	deadline := time.Now().Add(patience)
	for {
		var ok bool
		err := t.Eval("Boolean("+expression+")", &ok) // fails while a page gives way to the next
		if ok {
			return nil
		}
		if time.Now().After(deadline) {
			var text string
			_ = t.Eval("location.href + '\\n' + document.body.innerText", &text) // to say more, if it can be had
			return fmt.Errorf("waited in vain for %s (%s); the page is\n%s", expression, fmt.Sprint(err), text)
		}
		select {
		case <-t.ctx.Done():
			return t.ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Go opens an address and waits for the page.
func (t *Tab) Go(url string) error {
	return t.leave(func() error { return t.Call("Page.navigate", params{"url": url}, nil) })
}

// leave does something that leads to another page, and waits for that.
func (t *Tab) leave(do func() error) error {
	return errors.Join(t.Eval("window.left = true", nil), do(), t.Until("!window.left && document.readyState === 'complete'"))
}

// find is an expression for the element of a selector; "text=…" is the innermost link, button or summary with that text.
func find(selector string) string {
	if len(selector) > 5 && selector[:5] == "text=" {
		return "[...document.querySelectorAll('a, button, summary')].find(e => e.textContent.trim() === " + strconv.Quote(selector[5:]) +
			" && e.checkVisibility())"
	}
	return "document.querySelector(" + strconv.Quote(selector) + ")"
}

// Click clicks an element that stays on the page.
func (t *Tab) Click(selector string) error {
	return errors.Join(t.Until(find(selector)), t.Eval(find(selector)+".click()", nil))
}

// Follow clicks an element that leads to another page, and waits for that.
func (t *Tab) Follow(selector string) error {
	return errors.Join(t.Until(find(selector)), t.leave(func() error { return t.Eval(find(selector)+".click()", nil) }))
}

// Fill types a text into a field.
func (t *Tab) Fill(selector, text string) error {
	return errors.Join(t.Until(find(selector)), t.Eval(find(selector)+".focus()", nil), t.Eval(find(selector)+".value = ''", nil),
		t.Call("Input.insertText", params{"text": text}, nil))
}

// Press presses a key.
func (t *Tab) Press(key string) error {
	down := params{"type": "keyDown", "key": key}
	if len(key) == 1 {
		down["text"] = key
	} else if key == "Enter" {
		down["text"], down["windowsVirtualKeyCode"] = "\r", 13
	}
	return errors.Join(t.Call("Input.dispatchKeyEvent", down, nil), t.Call("Input.dispatchKeyEvent", params{"type": "keyUp", "key": key}, nil))
}

// Text is all that can be read on the page.
func (t *Tab) Text() (text string, err error) {
	err = t.Eval("document.body.innerText", &text)
	return text, err
}

// Screenshot takes a picture of what is seen, as PNG.
func (t *Tab) Screenshot() ([]byte, error) {
	var answer struct {
		Data string `json:"data"`
	}
	if err := t.Call("Page.captureScreenshot", params{"format": "png"}, &answer); err != nil {
		return nil, err
	}
	return base64.StdEncoding.DecodeString(answer.Data)
}
