package arch_test

import (
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Every limit that a file limit.go names stands in the table of docs/security.md with its value, and nothing else does.
func TestEveryLimitIsDocumented(t *testing.T) {
	t.Parallel()
	files := limitFiles(t)
	require.GreaterOrEqual(t, len(files), 10)
	limits := make(map[string]float64)
	for _, path := range files {
		folder, err := filepath.Rel(root, filepath.Dir(path))
		require.NoError(t, err)
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		require.NoError(t, err)
		for _, decl := range file.Decls {
			consts, ok := decl.(*ast.GenDecl)
			if !ok || consts.Tok != token.CONST {
				continue
			}
			for _, spec := range consts.Specs {
				values, ok := spec.(*ast.ValueSpec)
				require.True(t, ok && len(values.Names) == len(values.Values), "%s: each constant has its value", path)
				for i, name := range values.Names {
					limits[filepath.ToSlash(folder)+"."+name.Name] = valueOf(t, values.Values[i])
				}
			}
		}
	}
	page, err := os.ReadFile(filepath.Join(root, "docs", "security.md"))
	require.NoError(t, err)
	documented := make(map[string]float64)
	for _, row := range regexp.MustCompile("(?m)^\\| `([\\w/]+\\.\\w+)` \\| ([^|]+) \\| [^|]{10,} \\|$").FindAllStringSubmatch(string(page),
		-1) {
		documented[row[1]] = amountOf(t, row[2])
	}
	require.Equal(t, limits, documented)
	policy, err := os.ReadFile(filepath.Join(root, "SECURITY.md"))
	require.NoError(t, err)
	require.Contains(t, string(policy), "docs/security.md")
}

// limitFiles are the files limit.go of every module.
func limitFiles(t *testing.T) []string {
	t.Helper()
	var files []string
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && (d.Name() == ".git" || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		if d.Name() == "limit.go" {
			files = append(files, path)
		}
		return err
	}))
	return files
}

// valueOf is the value of a constant that is written as a number, a time, a text of so many seconds, or a sum of such.
func valueOf(t *testing.T, e ast.Expr) float64 {
	t.Helper()
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind == token.STRING {
			seconds, err := strconv.Atoi(strings.Trim(e.Value, `"`))
			require.NoError(t, err)
			return float64(seconds) * float64(time.Second)
		}
		v, ok := constant.Float64Val(constant.ToFloat(constant.MakeFromLiteral(e.Value, e.Kind, 0)))
		require.True(t, ok, e.Value)
		return v
	case *ast.BinaryExpr:
		x, y := valueOf(t, e.X), valueOf(t, e.Y)
		if e.Op == token.SHL {
			return x * float64(int64(1)<<int64(y))
		}
		require.Equal(t, token.MUL, e.Op)
		return x * y
	case *ast.SelectorExpr:
		v, ok := map[string]time.Duration{"Second": time.Second, "Minute": time.Minute, "Hour": time.Hour}[e.Sel.Name]
		require.True(t, ok, e.Sel.Name)
		return float64(v)
	}
	require.Fail(t, "a limit is a number or a time")
	return 0
}

// amountOf reads a value of the table, such as "1 MiB" or "100/s".
func amountOf(t *testing.T, amount string) float64 {
	t.Helper()
	number, unit, _ := strings.Cut(strings.TrimSuffix(strings.TrimSpace(amount), "/s"), " ")
	v, err := strconv.ParseFloat(strings.ReplaceAll(number, ",", ""), 64)
	require.NoError(t, err)
	factor, ok := map[string]float64{
		"": 1, "bytes": 1, "characters": 1, "KiB": 1 << 10, "MiB": 1 << 20, "Ki characters": 1 << 10, "Mi characters": 1 << 20,
		"s": float64(time.Second), "min": float64(time.Minute), "h": float64(time.Hour),
	}[unit]
	require.True(t, ok, amount)
	return v * factor
}
