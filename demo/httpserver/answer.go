package httpserver

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"strings"

	"github.com/bluecone-go/bluecone/demo/bluecone/input"
)

// Failure is the body of an answer that is an error.
type Failure struct {
	Error string `json:"error"` // for people
	Code  string `json:"code"`  // for programs
}

// Answer writes a JSON answer.
func Answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(v); err != nil {
		slog.Debug("an answer could not be written", "error", err)
	}
}

// Fail writes an answer that is an error.
func Fail(w http.ResponseWriter, status int, says, code string) {
	Answer(w, status, Failure{Error: says, Code: code})
}

// Unavailable answers a request whose outcome is unknown, and logs why.
func Unavailable(w http.ResponseWriter, r *http.Request, err error) {
	slog.ErrorContext(r.Context(), "request failed", "path", r.URL.Path, "error", err)
	Fail(w, http.StatusServiceUnavailable, "the outcome is unknown; the call may be repeated", "UNAVAILABLE")
}

// Recorder remembers the status of an answer.
type Recorder struct {
	http.ResponseWriter
	Status int
}

// WriteHeader remembers the status and passes it on.
func (r *Recorder) WriteHeader(status int) {
	r.Status = status
	r.ResponseWriter.WriteHeader(status)
}

// Unwrap lets a deadline be set on the connection.
func (r *Recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// Errors answers an unknown path or a wrong method in the API's own form. Nothing has a name that
// databases would not store, or not tell apart.
func Errors(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name := range strings.SplitSeq(r.URL.Path, "/") {
			if name != "" && input.Text("path", name, 128) != nil {
				Fail(w, http.StatusNotFound, "there is nothing of this name", "NOT_FOUND")
				return
			}
		}
		if _, pattern := mux.Handler(r); pattern == "" {
			probe := &Recorder{ResponseWriter: discard{http.Header{}}, Status: http.StatusOK}
			mux.ServeHTTP(probe, r)
			code := "NOT_FOUND"
			if probe.Status == http.StatusMethodNotAllowed {
				code = "METHOD_NOT_ALLOWED"
				w.Header().Set("Allow", probe.Header().Get("Allow"))
			}
			Fail(w, probe.Status, http.StatusText(probe.Status), code)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// discard takes an answer that nobody will see.
type discard struct{ header http.Header }

// Header collects the headers of the answer, which tell what the mux would have said.
func (d discard) Header() http.Header { return d.header }

// Write drops the body.
func (d discard) Write(b []byte) (int, error) { return len(b), nil }

// WriteHeader drops the status; the recorder around it has it.
func (d discard) WriteHeader(int) {}
