package eventrow

import (
	"database/sql"
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func parse(values ...string) Row {
	p := parser{raw: make([]sql.RawBytes, columns), words: make(map[string]string)}
	for i, v := range values {
		p.raw[i] = sql.RawBytes(v)
	}
	return p.row()
}

func TestMetadataWrittenByHandIsReadAsText(t *testing.T) {
	t.Parallel()
	r := parse("7", "id", "a.b", "A", "1", "1", "2", "1", "10", `{"n":1}`, `{"userId": 789, "tags": ["a"], "x": null, "s": "text"}`, "0",
		"NEW", "0", "3")
	require.Empty(t, r.Malformed)
	require.Equal(t, map[string]string{"userId": "789", "tags": `["a"]`, "x": "", "s": "text"}, r.Metadata)
	require.Equal(t, int64(7), r.OutboxID)
	require.Equal(t, int64(3), r.LockVersion)
}

// Whatever a row holds, it is read, and it is either good or says what is wrong with it: it is good if its numbers are
// whole, its payload is JSON, and its metadata is an object, of which each field is kept.
func FuzzParseReadsAnyRow(f *testing.F) {
	f.Add("1", `{"a":1}`, `{}`, "0")
	f.Add("x", "\xff", "[", "9999999999999999999999")
	f.Add("-1", "", "null", "1e3")
	f.Add("1", `"\ud800"`, `{"a":1,"a":"2","":null,"b":[{"c":"\u0000"}]}`, "1")
	f.Add("1", strings.Repeat("[", 300), `{"a":`+strings.Repeat("[", 300)+`}`, "1")
	f.Add("0x1", " 1 ", ` {"A" : 1.50 } `, "+1")
	f.Fuzz(func(t *testing.T, number, payload, metadata, created string) {
		r := parse(number, "id", "a.b", "A", "1", number, number, number, number, payload, metadata, created, "NEW", number, number)
		n, err := strconv.ParseInt(number, 10, 64)
		at, errAt := strconv.ParseInt(created, 10, 64)
		var fields map[string]any
		dec := json.NewDecoder(strings.NewReader(metadata))
		dec.UseNumber() // 1e999 is a number, and no float
		isObject := metadata == "" || json.Valid([]byte(metadata)) && dec.Decode(&fields) == nil
		if good := err == nil && errAt == nil && json.Valid([]byte(payload)) && isObject; good != (r.Malformed == "") {
			t.Errorf("good: %v, and it says %q", good, r.Malformed)
		}
		if string(r.Payload) != payload || r.Metadata == nil {
			t.Errorf("payload %q, metadata %v", r.Payload, r.Metadata)
		}
		if err == nil && (r.OutboxID != n || r.TenantID != n || r.LockVersion != n) || errAt == nil && r.CreatedAt.UnixMicro() != at {
			t.Errorf("%d became %d, %d, %d; %d became %v", n, r.OutboxID, r.TenantID, r.LockVersion, at, r.CreatedAt)
		}
		if isObject && len(r.Metadata) != len(fields) {
			t.Errorf("%q became %v", metadata, r.Metadata)
		}
		for k, v := range fields {
			got, ok := r.Metadata[k]
			if text, isText := v.(string); !ok || isText && got != text {
				t.Errorf("%q: %q became %q", metadata, k, got)
			}
		}
	})
}
