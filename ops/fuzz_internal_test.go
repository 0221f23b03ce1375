package ops

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A cursor comes from an address: it is refused, or is exactly what a page hands out.
func FuzzCursor(f *testing.F) {
	for _, s := range []string{
		"", "1.0.3", "0.1700000000000000.9", "-1.0.0", "1.2", "1.2.3.4", " 1.2.3", "01.2.3",
		"9223372036854775808.0.0", "1.2.3\n", "１.2.3",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		c, err := parseCursor(s)
		switch {
		case err != nil:
			require.ErrorIs(t, err, ErrInvalid)
		case s == "":
			require.Equal(t, cursor{}, c)
		default:
			require.Equal(t, s, c.String())
			require.GreaterOrEqual(t, c.leg, 0)
		}
		id, err := before(s)
		if err == nil && s != "" {
			require.Positive(t, id)
		}
	})
}

// contains says whether a decoded document holds a field of that name, in any case, with another value than the one that hides.
func contains(v any, name string) bool {
	switch v := v.(type) {
	case map[string]any:
		for k, field := range v {
			if strings.EqualFold(k, name) && field != hiddenText || contains(field, name) {
				return true
			}
		}
	case []any:
		for _, e := range v {
			if contains(e, name) {
				return true
			}
		}
	}
	return false
}

// A document that is redacted is JSON as before, has no personal field left, and is as it was where there was none.
func FuzzRedactor(f *testing.F) {
	for _, s := range []string{
		`{"phone": "555"}`, `{"a": [{"PHONE": {"x": 1}}], "n": 1.50}`, `[{"phone":null},{"phone":[1,2]}]`, `{"ph\u006fne": "555"}`,
		`{"phone":"1","phone":"2"}`,
		`"phone"`, `{"phone": "555"`, `{"phone": "555"} {"phone": "556"}`, strings.Repeat("[", 200), `{"phone":"hidden"}`, "", " ",
		`{"ſ": 1, "phone":"\ud800"}`,
	} {
		f.Add(s)
	}
	r := newRedactor(Config{Personal: []string{"phone"}})
	f.Fuzz(func(t *testing.T, doc string) {
		out, redacted := r.payload("order.fuzzed", doc)
		if !redacted {
			require.Equal(t, doc, out)
		}
		if doc == "" {
			return
		}
		var after any
		require.NoError(t, json.Unmarshal([]byte(out), &after), "%q became %q", doc, out)
		require.False(t, contains(after, "phone"), "%q became %q", doc, out)
		again, _ := r.payload("order.fuzzed", out)
		require.Equal(t, out, again, "what is hidden stays as it is")
	})
}
