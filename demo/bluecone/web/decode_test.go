package web

import (
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/bluecone-go/bluecone/demo/bluecone/module/order"
	"github.com/bluecone-go/bluecone/demo/httpserver"
	"github.com/bluecone-go/bluecone/internal/hostile"
)

// A body is read, or answered with 400 and JSON.
func FuzzBody(f *testing.F) {
	for _, v := range hostile.Values() {
		f.Add(v.Text)
		f.Add(`{"userId":"` + v.Text + `","totalCents":1}`)
	}
	f.Add(hostile.Deep(20000))
	f.Add(`{"totalCents":1e400}`)
	f.Fuzz(func(t *testing.T, body string) {
		var req order.NewOrder
		w := httptest.NewRecorder()
		if decode(w, httptest.NewRequestWithContext(t.Context(), "POST", "/orders", strings.NewReader(body)), &req) {
			return
		}
		var said httpserver.Failure
		if err := json.Unmarshal(w.Body.Bytes(), &said); err != nil || w.Code != 400 || said.Code == "" || said.Error == "" {
			t.Errorf("%q: %d %s", body, w.Code, w.Body)
		}
	})
}
