package arch_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A reader gets through these pages; what is longer belongs into docs/measurements.
func TestPagesAreShort(t *testing.T) {
	t.Parallel()
	limits := map[string]int{"docs/performance.md": 1500, "docs/reliability.md": 1200}
	for path, limit := range limits {
		require.LessOrEqual(t, len(strings.Fields(read(t, path))), limit, path)
	}
}

// A decision is one page with a status, a context, a decision and consequences; 28 is the list of what is open.
func TestDecisionsAreOnePageEach(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob(filepath.Join(root, "docs", "decisions", "0*.md"))
	require.NoError(t, err)
	require.Greater(t, len(pages), 25)
	index := read(t, "docs/decisions/README.md")
	for _, path := range pages {
		name := filepath.Base(path)
		require.Contains(t, index, "("+name+")", "docs/decisions/README.md lists every decision")
		if strings.HasPrefix(name, "0028") {
			continue
		}
		text := read(t, filepath.Join("docs", "decisions", name))
		require.LessOrEqual(t, len(strings.Fields(text)), 700, name)
		for _, part := range []string{"Status", "**Context.**", "**Decision.**", "**Consequences.**"} {
			require.Contains(t, text, part, name)
		}
	}
}

// What the table of CONTRIBUTING.md tells to open is there.
func TestFilesToOpenAreThere(t *testing.T) {
	t.Parallel()
	_, table, found := strings.Cut(read(t, "CONTRIBUTING.md"), "| to change | open |\n")
	require.True(t, found)
	paths := regexp.MustCompile("`([A-Za-z0-9/._]+)`").FindAllStringSubmatch(table, -1)
	require.Greater(t, len(paths), 40, "the test looks at nothing")
	for _, p := range paths {
		_, err := os.Stat(filepath.Join(root, filepath.FromSlash(p[1])))
		require.NoError(t, err, "CONTRIBUTING.md")
	}
}

// The programs that write tables find their marks in the files that the Makefile names.
func TestGeneratedTablesHaveTheirMarks(t *testing.T) {
	t.Parallel()
	makefile := read(t, "Makefile")
	files := map[string][]string{
		"benchmark.md": {"figures"}, "crash-points.md": {"crash"}, "soak.md": {"soak", "faults"}, "teeth.md": {"teeth"},
	}
	for name, marks := range files {
		path := "docs/measurements/" + name
		require.Contains(t, makefile, path)
		text := read(t, filepath.FromSlash(path))
		for _, mark := range marks {
			require.Contains(t, text, fmt.Sprintf("<!-- %s: written by make ", mark), path)
			require.True(t, strings.Contains(text, "<!-- /"+mark+" -->") || strings.Contains(text, "<!-- end of "+mark+" -->"),
				"%s: %s has no end", path, mark)
		}
	}
}

// The table of mechanisms names code that exists, and every row names what it serves.
func TestMechanismsAreInTheCode(t *testing.T) {
	t.Parallel()
	words, code := regexp.MustCompile(`\w+`), make(map[string]bool)
	for _, path := range goFiles(t) {
		if inside := strings.TrimPrefix(path, root+"/"); !strings.HasSuffix(path, "_test.go") && !strings.HasPrefix(inside, "internal/teeth/") {
			for _, word := range words.FindAllString(read(t, inside), -1) {
				code[word] = true
			}
		}
	}
	rows := 0
	for line := range strings.Lines(read(t, "docs/mechanisms.md")) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if len(cells) != 4 || strings.HasPrefix(cells[0], " mechanism") || strings.HasPrefix(line, "|--") {
			continue
		}
		rows++
		require.NotEmpty(t, strings.TrimSpace(cells[3]), cells[0])
		names := regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[2], -1)
		require.NotEmpty(t, names, cells[0])
		for _, name := range names {
			word := name[1][strings.LastIndexAny(name[1], "./")+1:]
			require.True(t, code[word], "%s: %s is not in the code any more", cells[0], name[1])
		}
	}
	require.Greater(t, rows, 30, "the test looks at nothing")
}
