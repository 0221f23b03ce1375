package schedule_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/schedule"
)

func TestWordsOfPlainIntervals(t *testing.T) {
	t.Parallel()
	for expr, want := range map[string]string{
		"0 */5 * * * ?":   "every 5 minutes",
		"0/10 * * * * ?":  "every 10 seconds",
		"0 0 */2 * * ?":   "every 2 hours",
		"* * * * *":       "every minute",
		"30 3 * * *":      "every day at 03:30 UTC",
		"0 0 12 * * MON":  "0 0 12 * * MON",
		"@hourly":         "@hourly",
		"0 1-5 * * * ?":   "0 1-5 * * * ?",
		"nothing of this": "nothing of this",
	} {
		require.Equal(t, want, schedule.Words(expr), expr)
	}
}
