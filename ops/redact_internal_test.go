package ops

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/origin"
	"github.com/bluecone-go/bluecone/internal/store/view"
)

type address struct {
	Street string `json:"street" bus:"pii"`
	Town   string `json:"town"`
}

type person struct {
	Name string `json:"name" bus:"pii"`
	Age  int64  `json:"age"`
}

type moved struct {
	person
	ID      int64              `json:"id"`
	From    address            `json:"from"`
	To      *address           `json:"to"`
	Via     []address          `json:"via"`
	ByName  map[string]address `json:"byName"`
	Friends []moved            `json:"friends"`
}

func (moved) EventType() string              { return "person.moved" }
func (m moved) Aggregate() (kind, id string) { return "PERSON", "1" }

// What is personal is hidden at every depth, and nothing else changes by a byte.
func TestRedaction(t *testing.T) {
	t.Parallel()
	r := newRedactor(Config{Publishable: []bus.Event{moved{}}, Personal: []string{"token", "meta.ip"}})
	for _, c := range []struct{ name, doc, want string }{
		{"embedded", `{"name":"Li","age":9007199254740993}`, `{"name":"(hidden)","age":9007199254740993}`},
		{"nested", `{"from":{"street":"A 1","town":"B"}}`, `{"from":{"street":"(hidden)","town":"B"}}`},
		{"pointer", `{"to": {"street": "A 1"} }`, `{"to": {"street": "(hidden)"} }`},
		{"list", `{"via":[{"street":"A"},{"town":"C"}]}`, `{"via":[{"street":"(hidden)"},{"town":"C"}]}`},
		{"map", `{"byName":{"Li":{"town":"C"}},"id":1}`, `{"byName":"(hidden)","id":1}`},
		{"itself", `{"friends":[{"name":"Bo","friends":[{"name":"Cy"}]}]}`, `{"friends":[{"name":"(hidden)","friends":[{"name":"(hidden)"}]}]}`},
		{"an object in its place", `{"name":{"first":"Li"},"age":1}`, `{"name":"(hidden)","age":1}`},
		{"paths of the configuration", `{"token":"x","meta":{"ip":"::1","ok":true}}`, `{"token":"(hidden)","meta":{"ip":"(hidden)","ok":true}}`},
		{"twice", `{"name":"a","name":"b"}`, `{"name":"(hidden)","name":"(hidden)"}`},
		{"not JSON", `{"name":"Li`, `"(hidden)"`},
		{"two documents", `{"name":"Li"} {"name":"Bo"}`, `"(hidden)"`},
		{"white space and digits", "{ \"id\" : 1.50e3 }\n", "{ \"id\" : 1.50e3 }\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, hid := r.payload("person.moved", c.doc)
			require.Equal(t, c.want, got)
			require.Equal(t, c.want != c.doc, hid)
		})
	}
	other, hid := r.payload("another.type", `{"name":"Li","token":"x"}`)
	require.Equal(t, `{"name":"Li","token":"(hidden)"}`, other)
	require.True(t, hid)
}

func TestRates(t *testing.T) {
	t.Parallel()
	var r ring
	s, saved, done := r.series()
	require.Empty(t, s.Saved)
	require.Zero(t, saved+done)
	const second = 1_000_000
	for i := range 100 {
		r.add(view.Growth{At: int64(i) * 5 * second, LastEvent: int64(i) * 50, LastDelivery: int64(i) * 100, Open: int64(i)})
	}
	s, saved, done = r.series()
	require.Len(t, s.Saved, 60, "five minutes")
	require.InDelta(t, 10, s.Saved[0], 0.001)
	require.InDelta(t, 20, s.Done[59], 0.001)
	require.InDelta(t, 99, s.Open[59], 0)
	require.InDelta(t, 10, saved, 0.001)
	require.InDelta(t, 20, done, 0.001)
	r.add(view.Growth{At: 600 * second, LastEvent: 1}) // a restored database
	_, saved, _ = r.series()
	require.GreaterOrEqual(t, saved, 0.0)
}

// A message that nobody could read may be of any type: what is personal in one of them is hidden in it, in its headers, and in its body if
// that is JSON, as text or as other bytes.
func TestRedactionOfWhatCouldNotBeRead(t *testing.T) {
	t.Parallel()
	r := newRedactor(Config{Publishable: []bus.Event{moved{}}, Personal: []string{"token", "meta.ip"}})
	for _, c := range []struct{ name, doc, want string }{
		{"body", `{"body":"{\"id\":1,\"name\":\"Li\"}"}`, `{"body":"{\"id\":1,\"name\":\"(hidden)\"}"}`},
		{
			"structured", `{"body":"{\"data\":{\"from\":{\"street\":\"A\"},\"meta\":{\"ip\":\"::1\"}}}"}`,
			`{"body":"{\"data\":{\"from\":{\"street\":\"(hidden)\"},\"meta\":{\"ip\":\"(hidden)\"}}}"}`,
		},
		{"structured, not JSON", `{"body":"{\"data_base64\":\"AAEC\"}"}`, `{"body":"{\"data_base64\":\"(hidden)\"}"}`},
		{"header", `{"headers":{"token":"x","n":"1"},"body":"none"}`, `{"headers":{"token":"(hidden)","n":"1"},"body":"none"}`},
		{
			"bytes that are JSON but no UTF-8", `{"bodyBase64":"eyJuYW1lIjoiTGkiLCJuIjoi/yJ9","size":21}`,
			"{\"body\":\"{\\\"name\\\":\\\"(hidden)\\\",\\\"n\\\":\\\"\uFFFD\\\"}\",\"size\":21}",
		},
		{"nothing personal", `{"size":3,"body":"{ \"id\": 1 }"}`, `{"size":3,"body":"{ \"id\": 1 }"}`},
		{"not JSON", `{"body":"name=Li"}`, `{"body":"name=Li"}`},
	} {
		got, isHidden := r.payload(origin.Undecodable, c.doc)
		require.Equal(t, c.want, got, c.name)
		require.Equal(t, got != c.doc, isHidden, c.name)
	}
}
