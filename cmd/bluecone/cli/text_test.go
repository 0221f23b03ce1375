package cli

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/ops"
)

func TestCleanTakesAwayWhatSteersATerminal(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"plain, 中文, é":        "plain, 中文, é",
		"\x1b[2Jgone":         `\x1b[2Jgone`,
		"\u009b2J":            `\x9b2J`,
		"two\nlines\tand tab": "two lines and tab",
		"a\x7fb\x00":          `a\x7fb\x00`,
		"abc\u202edcb":        `abc\u202edcb`,
		"broken \xff":         "broken \ufffd",
		"line\u2028separator": `line\u2028separator`,
	} {
		require.Equal(t, want, clean(text))
	}
}

func FuzzClean(f *testing.F) {
	f.Add("\x1b]0;title\x07")
	f.Fuzz(func(t *testing.T, text string) {
		got := clean(text)
		require.True(t, utf8.ValidString(got))
		require.False(t, strings.ContainsFunc(got, dangerous), "%q", got)
		require.Equal(t, got, clean(got))
	})
}

// JSON says the same after it was made harmless.
func FuzzJSONIsHarmlessAndTheSame(f *testing.F) {
	f.Add("\u009b2J\x1b[2J\u202e")
	f.Fuzz(func(t *testing.T, text string) {
		var b bytes.Buffer
		require.NoError(t, printJSON(&b, map[string]string{"text": text}))
		require.False(t, bytes.ContainsFunc(b.Bytes(), func(r rune) bool { return r != '\n' && dangerous(r) }), "%q", b.String())
		var back map[string]string
		require.NoError(t, json.Unmarshal(b.Bytes(), &back))
		plain, err := json.Marshal(text)
		require.NoError(t, err)
		var want string
		require.NoError(t, json.Unmarshal(plain, &want))
		require.Equal(t, want, back["text"])
	})
}

func TestMoment(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"2026-11-21":                "2026-11-21T00:00:00Z",
		"2026-11-21T18:00":          "2026-11-21T18:00:00Z",
		"2026-11-21 18:00:05":       "2026-11-21T18:00:05Z",
		"2026-11-21T18:00:00+08:00": "2026-11-21T10:00:00Z",
	} {
		var m moment
		require.NoError(t, m.Set(text))
		require.Equal(t, want, m.String())
	}
	past, future := moment{}, moment{ahead: true}
	require.NoError(t, past.Set("2h"))
	require.NoError(t, future.Set("2h"))
	require.True(t, past.at.Before(time.Now()))
	require.True(t, future.at.After(time.Now()))
	for _, wrong := range []string{"", "-2h", "0s", "tomorrow", "2026-13-01"} {
		require.ErrorContains(t, past.Set(wrong), "it is no time", wrong)
	}
}

func TestCells(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 21, 3, 4, 5, 6000, time.FixedZone("CST", 8*3600))
	for _, c := range []struct {
		value            any
		legible, exactly string
	}{
		{at, "2026-11-20 19:04:05", "2026-11-20T19:04:05.000006Z"},
		{time.Time{}, "-", ""},
		{90 * time.Second, "1m30s", "90"},
		{72 * time.Hour, "3d", "259200"},
		{2 * time.Hour, "2h00m", "7200"},
		{ops.Count{Count: 10_000, More: true}, "10000+", "10000"},
		{"", "-", ""},
		{"=1+1", "=1+1", "'=1+1"},
		{true, "yes", "true"},
		{int64(-3), "-3", "-3"},
		{[]string{"a", "b"}, "a, b", "a, b"},
		{ops.Paused, "paused", "paused"},
	} {
		require.Equal(t, c.legible, legible(c.value))
		require.Equal(t, c.exactly, exact(c.value))
	}
}

func TestHeadersAreWords(t *testing.T) {
	t.Parallel()
	require.Equal(t, "EVENT ID", header("eventId"))
	require.Equal(t, "CREATED (UTC)", header("createdAt"))
}

// Columns are aligned by what characters measure on a screen, not by their number.
func TestTablesAlignWideCharacters(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	require.NoError(t, printTable(&b, view{columns: []string{"name", "n"}, rows: [][]any{{"订单服务", 1}, {"ab", 2}}}))
	require.Equal(t, "NAME      N\n订单服务  1\nab        2\n", b.String())
	b.Reset()
	require.NoError(t, printTable(&b, view{
		columns: []string{"name", "createdAt", "n"}, rows: [][]any{{"a", time.Time{}, 1}, {"b", time.Time{}, 2}},
	}))
	require.Equal(t, "NAME  N\na     1\nb     2\n", b.String(), "columns that are empty are left out")
}

func TestClosestName(t *testing.T) {
	t.Parallel()
	known := []string{"PointsConsumer", "WalletConsumer"}
	require.Equal(t, ": did you mean PointsConsumer?", closeTo("pointsconsumr", known, ""))
	require.Equal(t, ": did you mean WalletConsumer?", closeTo("wallet", known, ""))
	require.Empty(t, closeTo("else", known, ""))
}

// A spreadsheet takes more for a formula than what begins with "=".
func TestCSVHoldsNoFormulas(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"=1+1", "+1", "-1", "@x", " =1", "＝1+1", "＋1", "－1", "＠x", "\u3000＝1", "﹦1", "﹣1"} {
		require.Equal(t, "'"+clean(text), exact(text))
	}
	require.Equal(t, "order.paid", exact("order.paid"))
}
