package ledger_test

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/ledger"
	"github.com/bluecone-go/bluecone/ledger/ledgerv1"
)

// swarm is a request in which one list or map has too many entries, in JSON and in protobuf: what comes before them, one of them, and what
// comes after. path is how the refusal names it.
type swarm struct {
	method, path         string
	before, entry, after string
	message              proto.Message // the same list with one entry
	most                 int
}

func swarms() []swarm {
	event := func(md map[string]string) *ledgerv1.Event { return &ledgerv1.Event{Metadata: md} }
	return []swarm{
		{"Publish", "events", `{"events":[`, `{}`, `]}`, &ledgerv1.PublishRequest{Events: []*ledgerv1.Event{{}}}, 1000},
		{"Ack", "acks", `{"acks":[`, `{}`, `]}`, &ledgerv1.AckRequest{Acks: []*ledgerv1.FinishConsumeRequest{{}}}, 500},
		{"Fetch", "eventTypes", `{"consumer":"C","eventTypes":[`, `""`, `]}`, &ledgerv1.FetchRequest{EventTypes: []string{""}}, 200},
		{
			"Publish", "events[0].metadata", `{"events":[{"metadata":{`, `"":""`, `}}]}`,
			&ledgerv1.PublishRequest{Events: []*ledgerv1.Event{event(map[string]string{"": ""})}}, 2100,
		},
		{
			"Reserve", "event.metadata", `{"event":{"metadata":{`, `"":""`, `}}}`,
			&ledgerv1.ReserveRequest{Event: event(map[string]string{"": ""})}, 2100,
		},
	}
}

const nearlyABody = 16<<20 - 1<<10

// json is the request with so many entries. Where the list is one of the request, the last of them is no JSON.
func (c swarm) json(entries int) []byte {
	last := "!"
	if c.isNested() {
		last = c.entry
	}
	return []byte(c.before + strings.Repeat(c.entry+",", entries-1) + last + c.after)
}

// isNested tells a list of the request from one that a message in it has: that one is looked at when it is there as a whole.
func (c swarm) isNested() bool { return strings.Contains(c.path, ".") }

// large is a request of JSON with as many entries as fit.
func (c swarm) large() []byte {
	return []byte(c.before + strings.Repeat(c.entry+",", nearlyABody/(len(c.entry)+1)) + c.entry + c.after)
}

// send sends a compressed body.
func (i *instance) send(method, contentType string, body []byte) (status int, answer string) {
	i.t.Helper()
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, err := w.Write(body)
	require.NoError(i.t, err)
	require.NoError(i.t, w.Close())
	req, err := http.NewRequestWithContext(i.t.Context(), http.MethodPost, i.url+ledger.Path+method, &packed)
	require.NoError(i.t, err)
	req.Header.Set("Content-Type", contentType)
	req.Header.Set("Content-Encoding", "gzip")
	res, err := http.DefaultClient.Do(req)
	require.NoError(i.t, err)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	require.NoError(i.t, err)
	return res.StatusCode, string(text)
}

// A list is read as far as it may go: what follows is not looked at, in whichever encoding it comes, and the refusal says which list.
func TestAListIsReadToItsLimitOnly(t *testing.T) {
	t.Parallel()
	i := serve(t, testdb.Open(t, "sqlite"), ledger.Config{Authorizer: ledger.Anybody})
	for _, c := range swarms() {
		t.Run(c.method+" "+c.path, func(t *testing.T) {
			t.Parallel()
			status, answer := i.send(c.method, "application/json", c.json(c.most))
			require.Equal(t, http.StatusBadRequest, status)
			require.NotContains(t, answer, "has more than", "it has as many as it may")
			status, answer = i.send(c.method, "application/json", c.json(c.most+1))
			require.Equal(t, http.StatusBadRequest, status)
			require.Contains(t, answer, "invalid_argument")
			require.Contains(t, answer, c.path+" has more than")
			require.NotContains(t, answer, "not valid JSON")
			if c.isNested() {
				return // of protobuf the list is one of the request
			}
			one, err := proto.Marshal(c.message)
			require.NoError(t, err)
			status, answer = i.send(c.method, "application/proto", append(bytes.Repeat(one, c.most+1), 0xff))
			require.Equal(t, http.StatusBadRequest, status)
			require.Contains(t, answer, c.path+" has more than")
		})
	}
}

// Every list and map that a caller may send has a limit.
func TestEveryListHasALimit(t *testing.T) {
	t.Parallel()
	methods := ledgerv1.File_bluecone_ledger_v1_ledger_proto.Services().ByName("Ledger").Methods()
	require.Positive(t, methods.Len())
	limits := make(map[protoreflect.FullName]int)
	var look func(of protoreflect.MessageDescriptor)
	look = func(of protoreflect.MessageDescriptor) {
		for i := range of.Fields().Len() {
			f := of.Fields().Get(i)
			if f.Cardinality() == protoreflect.Repeated {
				require.Positive(t, ledger.MostEntries[f.FullName()], f.FullName())
				limits[f.FullName()] = ledger.MostEntries[f.FullName()]
			}
			if f.Message() != nil && !f.IsMap() {
				look(f.Message())
			}
		}
	}
	for i := range methods.Len() {
		look(methods.Get(i).Input())
	}
	require.Equal(t, limits, ledger.MostEntries)
}

// A message of protobuf that stands in another one twice would be merged, list by list.
func TestAMessageThatStandsThereTwiceIsRefused(t *testing.T) {
	t.Parallel()
	i := serve(t, testdb.Open(t, "sqlite"), ledger.Config{Authorizer: ledger.Anybody})
	one, err := proto.Marshal(&ledgerv1.ReserveRequest{Event: &ledgerv1.Event{Metadata: map[string]string{"a": "b"}}})
	require.NoError(t, err)
	status, answer := i.send("Reserve", "application/proto", append(one, one...))
	require.Equal(t, http.StatusBadRequest, status)
	require.Contains(t, answer, "field event stands there twice")
	status, answer = i.send("Reserve", "application/proto", []byte{0xff})
	require.Equal(t, http.StatusBadRequest, status)
	require.Contains(t, answer, "no protobuf")
}

// A small body that holds millions of entries does not fill the memory.
func TestMillionsOfEntriesTakeNoMemory(t *testing.T) { //nolint:paralleltest // it measures
	if watched {
		t.Skip("the race detector has memory of its own")
	}
	const most = 200 << 20 // the body takes some, more than once while it grows
	i := serve(t, testdb.Open(t, "sqlite"), ledger.Config{Authorizer: ledger.Anybody})
	for _, c := range swarms() { //nolint:paralleltest // likewise
		one, err := proto.Marshal(c.message)
		require.NoError(t, err)
		for contentType, body := range map[string][]byte{
			"application/json":                c.large(),
			"application/json; charset=utf-8": c.large(),
			"application/proto":               bytes.Repeat(one, nearlyABody/len(one)),
		} {
			t.Run(c.method+" "+c.path+" "+contentType, func(t *testing.T) {
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				status, answer := i.send(c.method, contentType, body)
				runtime.ReadMemStats(&after)
				t.Logf("%d MiB", (after.TotalAlloc-before.TotalAlloc)>>20)
				require.Equal(t, http.StatusBadRequest, status, "%.200s", answer)
				require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(most))
			})
		}
	}
}

// A content type with a charset is the same JSON.
func TestCharsetChangesNothing(t *testing.T) {
	t.Parallel()
	i := serve(t, testdb.Open(t, "sqlite"), ledger.Config{Authorizer: ledger.Anybody})
	event := `{"events":[{"eventType":"order.paid","aggregateType":"ORDER","aggregateId":"1","payload":{"n":12345678901234567890},` +
		`"eventId":"e1"}]}`
	for _, contentType := range []string{"application/json; charset=utf-8", "application/json;charset=UTF-8"} {
		status, answer := i.send("Publish", contentType, []byte(event))
		require.Equal(t, http.StatusOK, status, answer)
		require.JSONEq(t, `{"eventIds":["e1"]}`, answer)
		status, answer = i.send("QueryLag", contentType, []byte(`{"consumer":"C"}`))
		require.Equal(t, http.StatusOK, status, answer)
		require.JSONEq(t, `{"pending":0,"oldestAge":"0s","dead":0}`, answer, "every field is present, integers are numbers")
		status, answer = i.send("QueryLag", contentType, []byte(`{"consumer":"C","colour":"red"}`))
		require.Equal(t, http.StatusBadRequest, status, answer)
	}
}
