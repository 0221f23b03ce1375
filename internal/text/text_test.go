package text_test

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/text"
)

// V13, V38: whatever an error says, its text can be stored.
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

// V7, V35: names are compared by their bytes in Go and in every database alike.
func TestNames(t *testing.T) {
	t.Parallel()
	good := map[string]func(string, string) error{
		"order.paid": text.EventType, "a": text.EventType, "order-v2.paid_late": text.EventType,
		"WalletConsumer": text.ConsumerName, "wallet.consumer-2": text.ConsumerName, "ORDER": text.AggregateType,
	}
	for s, check := range good {
		require.NoError(t, check("field", s), s)
	}
	bad := map[string]func(string, string) error{
		"": text.EventType, "Order.paid": text.EventType, ".paid": text.EventType, "order..paid": text.EventType, "order paid": text.EventType, "order.": text.EventType, "1st": text.EventType,
		"Wallet Consumer": text.ConsumerName, "Wallet ": text.ConsumerName, "钱包": text.ConsumerName, "_x": text.ConsumerName, strings.Repeat("x", 129): text.ConsumerName,
		"ORDER\n": text.AggregateType, strings.Repeat("A", 65): text.AggregateType,
	}
	for s, check := range bad {
		require.ErrorContains(t, check("field", s), "field", "%q", s)
	}
}
