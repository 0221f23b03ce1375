package cli

import (
	"bytes"
	"encoding/csv"
	"testing"

	"github.com/stretchr/testify/require"
)

// Whatever a database holds, a row stays a row, no cell is a formula, and nothing steers a terminal.
func FuzzCSV(f *testing.F) {
	for _, s := range []string{"", "=1+1", "a,b\"c", "x\r\ny", "\x1b[2J", "＝1", "'=1", "\ufeff=1", "\t=1", "\u200b=1", "\xff\x00"} {
		f.Add(s, "next")
	}
	f.Fuzz(func(t *testing.T, first, second string) {
		v := view{columns: []string{"a", "b"}}
		v.add(first, second)
		var b bytes.Buffer
		require.NoError(t, printCSV(&b, v))
		rows, err := csv.NewReader(&b).ReadAll()
		require.NoError(t, err)
		require.Len(t, rows, 2)
		for i, cell := range rows[1] {
			require.Equal(t, exact([]string{first, second}[i]), cell)
			require.False(t, isFormula(cell), "%q", cell)
			for _, r := range cell {
				require.False(t, r != '\n' && dangerous(r), "%q", cell)
			}
		}
	})
}
