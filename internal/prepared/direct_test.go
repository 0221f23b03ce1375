package prepared

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// likePGX has the methods of pgx's connection that are called by name.
type likePGX[M any] struct {
	Capacity int
	Mode     M
}

func (c likePGX[M]) Conn() likePGX[M]   { return c }
func (c likePGX[M]) PgConn() likePGX[M] { return c }
func (c likePGX[M]) PID() uint32        { return 4711 }

func (c likePGX[M]) Config() *config[M] { return &config[M]{c.Capacity, c.Mode} }

type config[M any] struct {
	StatementCacheCapacity int
	DefaultQueryExecMode   M
}

// modeOfToday is counted and called as pgx v5 does it, modeOfLater in another way.
type (
	modeOfToday int32
	modeOfLater int32
)

func (m modeOfToday) String() string {
	return []string{"", "cache statement", "cache describe", "", "", "simple protocol"}[m]
}

func (m modeOfLater) String() string {
	return []string{"simple protocol", "exec", "cache statement"}[m]
}

// The process and the mode are those of pgx. With any other driver, and a pgx that is not as this one, there is none.
func TestWhatIsReadOfADriver(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		conn    any
		process uint64
		mode    any
	}{
		"pgx":                 {likePGX[modeOfToday]{512, 5}, 4711, modeOfToday(1)},
		"pgx without a cache": {likePGX[modeOfToday]{0, 5}, 4711, nil},
		"modes count anew":    {likePGX[modeOfLater]{512, 0}, 4711, nil},
		"mode is no number":   {likePGX[string]{512, ""}, 4711, nil},
		"another driver":      {struct{}{}, 0, nil},
	} {
		require.Equal(t, c.process, process(c.conn), name)
		require.Equal(t, c.mode, caching(c.conn), name)
	}
}
