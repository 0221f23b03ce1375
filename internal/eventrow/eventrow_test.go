package eventrow

import (
	"database/sql"
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
	r := parse("7", "id", "a.b", "A", "1", "1", "2", "1", "10", `{"n":1}`, `{"userId": 789, "tags": ["a"], "x": null, "s": "text"}`, "0", "NEW", "0", "3")
	require.Empty(t, r.Malformed)
	require.Equal(t, map[string]string{"userId": "789", "tags": `["a"]`, "x": "", "s": "text"}, r.Metadata)
	require.Equal(t, int64(7), r.OutboxID)
	require.Equal(t, int64(3), r.LockVersion)
}

// Whatever a row holds, it is read, and it is either good or says what is wrong with it.
func FuzzParseReadsAnyRow(f *testing.F) {
	f.Add("1", `{"a":1}`, `{}`, "0")
	f.Add("x", "\xff", "[", "9999999999999999999999")
	f.Add("-1", "", "null", "1e3")
	f.Fuzz(func(t *testing.T, number, payload, metadata, created string) {
		r := parse(number, "id", "a.b", "A", "1", number, number, number, number, payload, metadata, created, "NEW", number, number)
		if r.Metadata == nil {
			t.Error("metadata is nil")
		}
		if r.Malformed == "" && len(r.Payload) == 0 {
			t.Error("an empty payload is no JSON")
		}
	})
}
