package text_test

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/hostile"
	"github.com/bluecone-go/bluecone/internal/text"
)

// Whatever an error says, its text can be stored.
func FuzzCleanCanBeStored(f *testing.F) {
	for _, s := range []string{"", "plain", "\xff\xfe", "a\x00b", strings.Repeat("长", 3000), "\U0001F600"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := text.Clean(s, 20)
		if !utf8.ValidString(got) || strings.Contains(got, "\x00") || utf8.RuneCountInString(got) > 20 {
			t.Errorf("%q became %q", s, got)
		}
		if utf8.ValidString(s) && !strings.Contains(s, "\x00") && utf8.RuneCountInString(s) <= 20 && got != s {
			t.Errorf("%q was changed to %q without need", s, got)
		}
	})
}

func TestErrorAlwaysSaysSomething(t *testing.T) {
	t.Parallel()
	require.Empty(t, text.Error(nil))
	require.Equal(t, "*errors.errorString with an empty message", text.Error(errors.New("")))
	require.Equal(t, "*errors.errorString with an empty message", text.Error(errors.New("\x00")))
	long := text.Error(errors.New(strings.Repeat("x", 5000)))
	require.Equal(t, text.MaxError, utf8.RuneCountInString(long))
	require.True(t, strings.HasSuffix(long, "…"))
}

// Names are compared by their bytes in Go and in every database alike.
func TestNamesAreComparedByTheirBytes(t *testing.T) {
	t.Parallel()
	good := map[string]func(string, string) error{
		"order.paid": text.EventType, "a": text.EventType, "order-v2.paid_late": text.EventType,
		"WalletConsumer": text.ConsumerName, "wallet.consumer-2": text.ConsumerName, "ORDER": text.AggregateType,
	}
	for s, check := range good {
		require.NoError(t, check("field", s), s)
	}
	bad := map[string]func(string, string) error{
		"": text.EventType, "Order.paid": text.EventType, ".paid": text.EventType, "order..paid": text.EventType,
		"order paid": text.EventType, "order.": text.EventType, "1st": text.EventType,
		"Wallet Consumer": text.ConsumerName, "Wallet ": text.ConsumerName, "钱包": text.ConsumerName, "_x": text.ConsumerName,
		strings.Repeat("x", 129): text.ConsumerName,
		"ORDER\n":                text.AggregateType, strings.Repeat("A", 65): text.AggregateType,
	}
	for s, check := range bad {
		require.ErrorContains(t, check("field", s), "field", "%q", s)
	}
}

// What a database quotes back of a value is left out of an error's text; names stay.
func TestErrorsDoNotQuoteValues(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ said, want string }{
		{
			"Error 1062 (23000): Duplicate entry 'O'Hara' for key 'uk_name'",
			"Error 1062 (23000): Duplicate entry '…' for key 'uk_name'",
		},
		{
			"Error 1292 (22007): Incorrect datetime value: 'secret' for column `d`.`t`.`c` at row 1",
			"Error 1292 (22007): Incorrect datetime value: '…' for column `d`.`t`.`c` at row 1",
		},
		{
			"Error 1292 (22007): Truncated incorrect DECIMAL value: 'secret'",
			"Error 1292 (22007): Truncated incorrect DECIMAL value: '…'",
		},
		{
			`ERROR: invalid input syntax for type integer: "secret" (SQLSTATE 22P02)`,
			`ERROR: invalid input syntax for type integer: "…" (SQLSTATE 22P02)`,
		},
		{
			`ERROR: value "99999999999" is out of range for type integer (SQLSTATE 22003)`,
			`ERROR: value "…" is out of range for type integer (SQLSTATE 22003)`,
		},
		{
			"json: cannot unmarshal number 4929 into Go struct field card.number of type int8",
			"json: cannot unmarshal number … into Go struct field card.number of type int8",
		},
		{
			"the order 'x' is not paid",
			"the order 'x' is not paid",
		},
	} {
		require.Equal(t, c.want, text.Error(errors.New(c.said)))
	}
}

// Whatever is accepted as a name or key is stored alike by every database; whatever is refused is
// refused in a line that names the field.
func FuzzNames(f *testing.F) {
	for _, v := range hostile.Values() {
		f.Add(v.Text)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for name, check := range map[string]func(field, s string) error{
			"event type": text.EventType, "consumer": text.ConsumerName, "aggregate type": text.AggregateType,
			"key": func(field, s string) error { return text.Key(field, s, 255) },
		} {
			err := check(name, s)
			if err != nil {
				if said := err.Error(); !strings.HasPrefix(said, name) || len(said) > 500 || !utf8.ValidString(said) || strings.ContainsAny(said,
					"\n\x00\x1b") {
					t.Errorf("%s %q: %q", name, s, said)
				}
				continue
			}
			if s == "" || len(s) > 255 || !utf8.ValidString(s) || strings.TrimSpace(s) != s || strings.ContainsAny(s, "\x00\n\r\t") {
				t.Errorf("%s: %q is accepted", name, s)
			}
		}
	})
}
