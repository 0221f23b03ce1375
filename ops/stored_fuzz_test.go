package ops

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/store/view"
)

// Whatever somebody has written into the JSON columns of registry, jobs and bulk operations is shown whole or not at all: no
// type, and no count, that is not there. An operation that cannot be read is FAILED.
func FuzzStoredJSON(f *testing.F) {
	for _, s := range []string{
		"", "null", "{}", "[]", "[1]", `["order.paid","order.canceled"]`, `["a",1]`, `["a",null]`, `{"removed":3,"keys":0}`,
		`{"removed":3,"keys":"x"}`, `{"a":null}`, `{"a":1.5}`, `{"a":9223372036854775808}`, `{"a":1,"A":2,"a":3}`,
		`{"a":{},"a":0}`, `{"a":null,"a":1}`, strings.Repeat("[", 11000),
		`{"query":{"consumer":"Points"},"tenants":[1],"rate":10,"spread":1}`, `{"tenants":["x"],"rate":-1}`, `["\ud800"]`, "{}{}",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, column string) {
		var document any
		dec := json.NewDecoder(bytes.NewReader([]byte(column)))
		dec.UseNumber()
		valid := dec.Decode(&document) == nil && json.Valid([]byte(column))
		types, counts := storedTypes(column), storedCounts(column)
		list, _ := document.([]any)
		var want []string
		for _, v := range list {
			s, ok := v.(string)
			if !ok || !valid {
				want = nil
				break
			}
			want = append(want, s)
		}
		require.ElementsMatch(t, want, types)
		object, _ := document.(map[string]any)
		if len(counts) > 0 || valid && wholeNumbers(column) {
			require.Len(t, counts, len(object))
		}
		for name, n := range counts {
			require.Equal(t, json.Number(strconv.FormatInt(n, 10)), canonical(object[name]), name)
		}
		bulk := newBulk(view.Bulk{State: "RUNNING", Request: column})
		var asked request
		canRun := json.Unmarshal([]byte(column), &asked) == nil && asked.Rate >= 0.1 && asked.Rate <= 10_000 && asked.Spread >= 0 &&
			asked.Spread <= 7*24*time.Hour
		require.Equal(t, canRun, bulk.State != BulkFailed)
		if !valid {
			require.Equal(t, BulkFailed, bulk.State)
			require.Empty(t, bulk.Tenants)
		}
		require.False(t, math.IsNaN(bulk.Rate) || math.IsInf(bulk.Rate, 0))
	})
}

// wholeNumbers is whether each member of an object is a whole number, the earlier ones of a repeated name too: a decoded map
// has only the last one.
func wholeNumbers(column string) bool {
	dec := json.NewDecoder(strings.NewReader(column))
	if open, err := dec.Token(); err != nil || open != json.Delim('{') {
		return false
	}
	for dec.More() {
		if _, err := dec.Token(); err != nil {
			return false
		}
		var member json.RawMessage
		if dec.Decode(&member) != nil {
			return false
		}
		if _, err := strconv.ParseInt(string(member), 10, 64); err != nil {
			return false
		}
	}
	return true
}

// canonical is a whole number as Go writes it: -0 is 0.
func canonical(v any) json.Number {
	n, _ := v.(json.Number)
	if n == "-0" {
		return "0"
	}
	return n
}
