package schedule_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/hostile"
	"github.com/bluecone-go/bluecone/internal/schedule"
)

func TestSpecsOfTheOriginalDesign(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 29, 1, 59, 57, 0, time.UTC) // summer time begins in Europe: UTC does not care
	for expr, next := range map[string]string{
		"0/10 * * * * ?": "2026-03-29T02:00:00Z",
		"0 */5 * * * ?":  "2026-03-29T02:00:00Z",
		"0 0 */2 * * ?":  "2026-03-29T02:00:00Z",
		"*/5 * * * *":    "2026-03-29T02:00:00Z",
		"30 3 * * 1":     "2026-03-30T03:30:00Z",
		"@hourly":        "2026-03-29T02:00:00Z",
		"0 0 0 29 2 ?":   "2028-02-29T00:00:00Z",
	} {
		spec, err := schedule.Parse(expr)
		require.NoError(t, err, expr)
		require.Equal(t, next, spec.Next(at).Format(time.RFC3339), expr)
		require.Equal(t, expr, spec.String())
	}
}

// The parser behind this one panics on some input, and takes time zones.
func TestBadSpecsAreErrorsNotPanics(t *testing.T) {
	t.Parallel()
	for expr, says := range map[string]string{
		"":                                "has 0 fields",
		"TZ=0":                            "names a time zone",
		"TZ=":                             "names a time zone",
		"CRON_TZ=Europe/Berlin 0 0 * * *": "names a time zone",
		"* * * *":                         "has 4 fields: it must have 5",
		"0 0 0 1 1 ? 2026":                "has 7 fields",
		"61 * * * * ?":                    "above maximum",
		"a b c d e":                       "cron expression",
		"0 0 0 30 2 ?":                    "names a date that never comes",
		"@never":                          "cron expression",
		strings.Repeat("*", 10_000):       "has 1 field: ",
	} {
		_, err := schedule.Parse(expr)
		require.ErrorContains(t, err, says, expr)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"0/10 * * * * ?", "TZ=0", "@every 1s", "*/0 * * * *", "1-0 * * * *", "? ? ? ? ?"} {
		f.Add(s)
	}
	for _, v := range hostile.Values() {
		f.Add(v.Text)
		f.Add(v.Text + " * * * *")
	}
	f.Fuzz(func(t *testing.T, expr string) {
		spec, err := schedule.Parse(expr)
		if err == nil && spec.Next(time.Unix(0, 0)).IsZero() {
			t.Errorf("%q is accepted and never due", expr)
		}
	})
}
