package alert_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/bluecone-go/bluecone/alert"
)

// The receiver of a webhook reads the body once, checks it as it arrived, and only then parses it.
func ExampleVerifyWebhook() {
	receive := func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		if err != nil {
			http.Error(w, "the body cannot be read", http.StatusBadRequest)
			return
		}
		if err := alert.VerifyWebhook("a long secret", r.Header, body); err != nil {
			http.Error(w, err.Error(), http.StatusUnauthorized)
			return
		}
		fmt.Fprintln(w, "thank you")
	}
	answer := httptest.NewRecorder()
	receive(answer, httptest.NewRequest(http.MethodPost, "/alerts", strings.NewReader(`{"kind":"FIRING"}`)))
	fmt.Print(answer.Code, " ", answer.Body)
	// Output:
	// 401 alert: the message is not signed with this secret: it needs the headers X-Bluecone-Timestamp and X-Bluecone-Signature once each
}
