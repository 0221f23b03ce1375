package arch_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// namesTable finds the name of a table of the library where a statement has it, and a name that stands for itself.
var namesTable = regexp.MustCompile(`\b(?:FROM|JOIN|INTO|UPDATE|TABLE|TABLES|INDEX \w+ ON|INDEXED BY|ONLY) bc_\w|^bc_[a-z_]+(?: |$)|'bc_\w`)

// elsewhere are the folders outside internal/store whose statements name tables of the library, and why.
var elsewhere = map[string]string{
	"migrations":        "makes the tables",
	"bustest":           "plays the faults of a test: it takes leases away, and makes time pass",
	"demo":              "a module of its own, which can use what is exported only",
	"bench":             "a module of its own, which measures the tables from outside",
	"internal/dialect":  "names the indexes that SQLite has to be told",
	"internal/hostile":  "a text that looks like SQL; only tests",
	"internal/roomtest": "only tests",
	"internal/testdb":   "only tests",
	"internal/testplan": "only tests",
	"internal/txtest":   "only tests",
	"internal/teeth":    "quotes the code that it sabotages",
	"internal/store":    "is where statements are",
}

// Statements on the library's tables are functions of internal/store, or of internal/store/view: whoever changes a table or an
// index finds there all that read it.
func TestOnlyTheStoreNamesTables(t *testing.T) {
	t.Parallel()
	used := make(map[string]bool)
	for _, path := range append(goFiles(t), benchFiles(t)...) {
		inside, err := filepath.Rel(root, path)
		require.NoError(t, err)
		if strings.HasSuffix(path, "_test.go") || strings.Contains(inside, "testdata") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			literal, ok := n.(*ast.BasicLit)
			if !ok || literal.Kind != token.STRING {
				return true
			}
			text, err := strconv.Unquote(literal.Value)
			require.NoError(t, err)
			if !namesTable.MatchString(text) {
				return true
			}
			dir := excepted(inside)
			used[dir] = true
			assert.NotEmpty(t, dir, "%s names a table of the library: %q; its statement belongs in internal/store", inside, text)
			return true
		})
	}
	for dir := range elsewhere {
		assert.True(t, used[dir], "%s names no table any more: it is no exception", dir)
	}
}

// excepted is the folder in elsewhere that a file is in, empty if it is in none.
func excepted(file string) string {
	for dir := range elsewhere {
		if strings.HasPrefix(file, dir+string(filepath.Separator)) {
			return dir
		}
	}
	return ""
}

func benchFiles(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, "bench", "*.go"))
	require.NoError(t, err)
	return slices.DeleteFunc(files, func(f string) bool { return strings.HasSuffix(f, "_test.go") })
}
