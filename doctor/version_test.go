package doctor

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A version that the migrations or the claims fail on is refused, and every later one is taken.
func TestLeastVersions(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ dialect, version, least string }{
		{"mysql", "8.0.1", "MySQL 8.0.13"},
		{"mysql", "8.0.12-log", "MySQL 8.0.13"},
		{"mysql", "5.7.44", "MySQL 8.0.13"},
		{"mysql", "8.0.13", ""},
		{"mysql", "8.4.0", ""},
		{"mysql", "9.7.4-2", ""},
		{"mysql", "10.5.29-MariaDB", "MariaDB 10.6"},
		{"mysql", "10.6.0-MariaDB-log", ""},
		{"mysql", "11.8.9-MariaDB-4 from Debian", ""},
		{"postgres", "12.22", "PostgreSQL 13"},
		{"postgres", "13.0 (Debian 13.0-1)", ""},
		{"postgres", "18.6", ""},
		{"sqlite", "3.34.1", "SQLite 3.35"},
		{"sqlite", "3.35.0", ""},
	} {
		require.Equal(t, c.least, lacking(c.dialect, c.version), "%s %s", c.dialect, c.version)
	}
}
