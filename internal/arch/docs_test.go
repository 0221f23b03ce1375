package arch_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A reader gets through these pages; what is longer belongs into docs/measurements.
func TestPagesAreShort(t *testing.T) {
	t.Parallel()
	limits := map[string]int{"docs/performance.md": 1500, "docs/reliability.md": 1200}
	for path, limit := range limits {
		require.LessOrEqual(t, len(strings.Fields(read(t, path))), limit, path)
	}
	prose := link.ReplaceAllString(fenced.ReplaceAllString(read(t, "README.md"), ""), "]")
	require.LessOrEqual(t, len(regexp.MustCompile(`\pL+`).FindAllString(prose, -1)), 850, "README.md is read in three minutes")
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
		text := read(t, filepath.Join("docs", "decisions", name))
		require.LessOrEqual(t, len(strings.Fields(text)), 700, name)
		for _, part := range []string{"Status", "**Context.**", "**Decision.**", "**Consequences.**"} {
			require.Contains(t, text, part, name)
		}
	}
}

// The table of packages names every package of the library's module.
func TestEveryPackageHasALine(t *testing.T) {
	t.Parallel()
	page, looked := read(t, "docs/architecture.md"), 0
	for path := range packages(t, "./...") {
		if inside, isOurs := strings.CutPrefix(path, module+"/"); isOurs {
			looked++
			line := regexp.MustCompile("(?m)^\\|[^|]*`" + regexp.QuoteMeta(inside) + "`[^|]*\\|")
			assert.True(t, line.MatchString(page), "docs/architecture.md does not say what %s is for", inside)
		}
	}
	require.Greater(t, looked, 60, "the test looks at nothing")
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
	declared := declarations(t)
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
			require.True(t, declared[name[1]], "%s: %s is not in the code any more", cells[0], name[1])
		}
	}
	require.Greater(t, rows, 30, "the test looks at nothing")
}

// declarations are what the code declares, as a page may name it: a folder, a name, alone or behind its package, and a method behind its
// type, with the package before that or not.
func declarations(t *testing.T) map[string]bool {
	t.Helper()
	declared := make(map[string]bool)
	for _, path := range goFiles(t) {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		require.NoError(t, err)
		declared[filepath.ToSlash(dir)] = true
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, name := range declaredIn(file) {
			declared[name], declared[file.Name.Name+"."+name] = true, true
		}
	}
	return declared
}

// declaredIn are the names that a file declares; a method has that of its type before it, and stands alone, too.
func declaredIn(file *ast.File) (names []string) {
	for _, decl := range file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			names = append(names, d.Name.Name)
			if d.Recv != nil {
				names = append(names, receiver(d)+"."+d.Name.Name)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					names = append(names, s.Name.Name)
				case *ast.ValueSpec:
					for _, n := range s.Names {
						names = append(names, n.Name)
					}
				}
			}
		}
	}
	return names
}
