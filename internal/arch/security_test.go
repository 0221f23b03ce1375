package arch_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every limit that a file limit.go names stands in the table of docs/security.md, and nothing else does.
func TestEveryLimitIsDocumented(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(root, "*", "limit.go"))
	require.NoError(t, err)
	limits := make(map[string]bool)
	for _, path := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			if spec, ok := n.(*ast.ValueSpec); ok {
				for _, name := range spec.Names {
					limits[file.Name.Name+"."+name.Name] = true
				}
			}
			_, body := n.(*ast.BlockStmt)
			return !body
		})
	}
	require.GreaterOrEqual(t, len(files), 3)
	page, err := os.ReadFile(filepath.Join(root, "docs", "security.md"))
	require.NoError(t, err)
	documented := make(map[string]bool)
	for _, row := range regexp.MustCompile("(?m)^\\| `(\\w+\\.\\w+)` \\| [^|]+ \\| [^|]{10,} \\|$").FindAllStringSubmatch(string(page), -1) {
		documented[row[1]] = true
	}
	require.Equal(t, limits, documented)
	policy, err := os.ReadFile(filepath.Join(root, "SECURITY.md"))
	require.NoError(t, err)
	require.Contains(t, string(policy), "docs/security.md")
}
