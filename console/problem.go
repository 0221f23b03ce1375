package console

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"

	"github.com/bluecone-go/bluecone/ops"
)

// refusal is an answer other than success.
type refusal struct {
	status int
	key    string // of the sentence in the catalog
	err    error
}

// Error says what is wrong.
func (r *refusal) Error() string { return r.err.Error() }

// Unwrap returns the cause.
func (r *refusal) Unwrap() error { return r.err }

// invalid is a request that cannot be understood.
func invalid(err error) error { return &refusal{http.StatusBadRequest, "error.invalid", err} }

// forbidden is what somebody may not do.
func forbidden(needs Permission) error {
	return &refusal{http.StatusForbidden, "error.forbidden", errors.New("this needs the permission " + string(needs))}
}

// unread is a body that could not be read.
func unread(what string, err error) error {
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return &refusal{http.StatusRequestEntityTooLarge, "error.invalid", fmt.Errorf("%s is longer than %d bytes", what, maxBody)}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &refusal{http.StatusRequestTimeout, "error.invalid", fmt.Errorf("%s took longer than %v to arrive", what, bodyTime)}
	}
	return invalid(fmt.Errorf("%s cannot be read: %w", what, err))
}

// refused turns an error into an answer.
func refused(r *http.Request, err error) *refusal {
	var known *refusal
	switch {
	case errors.As(err, &known):
		return known
	case errors.Is(err, ops.ErrInvalid):
		return &refusal{http.StatusBadRequest, "error.invalid", err}
	case errors.Is(err, ops.ErrForbidden):
		return &refusal{http.StatusForbidden, "error.forbidden", err}
	case errors.Is(err, ops.ErrTooManyReaders):
		return &refusal{http.StatusServiceUnavailable, "error.busy", ops.ErrTooManyReaders}
	case errors.Is(err, ops.ErrUnknown):
		return &refusal{http.StatusNotFound, "error.notfound", err}
	case errors.Is(err, ops.ErrNotFound) && r.Method == http.MethodPost:
		return &refusal{http.StatusConflict, "error.state", err}
	case errors.Is(err, ops.ErrNotReplayable):
		return &refusal{http.StatusConflict, "error.state", err}
	case errors.Is(err, ops.ErrNotFound):
		return &refusal{http.StatusNotFound, "error.notfound", err}
	case errors.Is(err, context.DeadlineExceeded):
		return &refusal{http.StatusServiceUnavailable, "error.slow", err}
	}
	return &refusal{http.StatusInternalServerError, "error.internal", err}
}

// problem is an error for programs (RFC 9457).
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
}

// fail answers an error, in the form of what was asked for.
func (c *Console) fail(w http.ResponseWriter, r *http.Request, err error) {
	no := refused(r, err)
	if no.status == http.StatusForbidden || errors.Is(err, ops.ErrOtherTenant) {
		c.noteAttempt(r, no)
	}
	switch {
	case errors.Is(err, ops.ErrTooManyReaders):
		w.Header().Set("Retry-After", retryAfter)
	case r.Context().Err() != nil: // nobody reads the answer
	case no.status >= http.StatusInternalServerError:
		reference := newID()[:8]
		c.cfg.Logger.ErrorContext(r.Context(), "console: a request failed", "reference", reference, "path", r.URL.Path, "error", err)
		no = &refusal{no.status, no.key, errors.New("the log of the service says why, under the reference " + reference)}
	}
	if isAPI(r) {
		answerJSON(w, no.status, "application/problem+json", problem{"about:blank", http.StatusText(no.status), no.status, no.Error()})
		return
	}
	loc := localeOf(r)
	v := c.viewOf(r, "error", map[string]any{"Says": c.texts[loc.lang].text(no.key), "Detail": no.Error(), "Status": no.status})
	v.Self = "" // nothing to refresh
	c.render(w, r, no.status, v)
}

func answerJSON(w http.ResponseWriter, status int, contentType string, v any) {
	var body bytes.Buffer
	enc := json.NewEncoder(&body)
	if err := enc.Encode(v); err != nil {
		http.Error(w, "the answer cannot be encoded: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	_, _ = w.Write(body.Bytes()) // a client that went away needs no answer
}

// isAPI reports whether a program asks, which wants JSON and English.
func isAPI(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, "/api/") }
