package crash_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/report"
)

// matrix counts, for each file of the library, at how many points which fate was survived.
type matrix struct {
	mu    sync.Mutex
	tried map[cell]int
	held  map[cell]int
}

type cell struct{ dialect, file, action string }

func newMatrix() *matrix { return &matrix{tried: make(map[cell]int), held: make(map[cell]int)} }

func (m *matrix) began(dialect, point, action string)  { m.add(m.tried, dialect, point, action) }
func (m *matrix) passed(dialect, point, action string) { m.add(m.held, dialect, point, action) }

func (m *matrix) add(counts map[cell]int, dialect, point, action string) {
	file, _, _ := strings.Cut(point, ":")
	m.mu.Lock()
	defer m.mu.Unlock()
	counts[cell{dialect, file, action}]++
}

// publish prints the matrix, and writes it into the document that BLUECONE_TEST_REPORT names.
func (m *matrix) publish(t *testing.T) {
	t.Helper()
	var files []string
	for c := range m.tried {
		if !slices.Contains(files, c.file) {
			files = append(files, c.file)
		}
	}
	slices.Sort(files)
	table := report.Table{Head: []string{"where the process was"}}
	for _, dialect := range []string{"MariaDB", "MySQL 9", "PostgreSQL"} {
		for _, action := range actions() {
			table.Head = append(table.Head, dialect+" "+action)
		}
	}
	total := make([]cell, 0)
	for _, dialect := range []string{"mysql", "mysql9", "postgres"} {
		for _, action := range actions() {
			total = append(total, cell{dialect, "", action})
		}
	}
	for _, f := range append(files, "all") {
		row := []string{f}
		for _, c := range total {
			tried, held := 0, 0
			for _, name := range files {
				if f == name || f == "all" {
					tried += m.tried[cell{c.dialect, name, c.action}]
					held += m.held[cell{c.dialect, name, c.action}]
				}
			}
			row = append(row, fmt.Sprintf("%d of %d", held, tried))
		}
		table.Rows = append(table.Rows, row)
	}
	t.Logf("points survived:\n%s", table)
	if path := os.Getenv("BLUECONE_TEST_REPORT"); path != "" {
		require.NoError(t, report.Write(path, "crash", table.String()))
	}
}
