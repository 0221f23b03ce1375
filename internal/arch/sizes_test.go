package arch_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	mostFields  = 15
	mostMethods = 25
)

// A struct has at most 15 fields and a type at most 25 methods. What users fill (…Config of a package that they import) and
// plain rows, which have no methods and nothing but data, may have more fields. The façade ops.Ops may have 40 methods.
func TestTypesAreSmall(t *testing.T) {
	t.Parallel()
	fields, methods := sizes(t)
	require.Greater(t, len(fields), 150, "the test looks at nothing")
	require.Greater(t, len(methods), 150, "the test looks at nothing")
	for name, n := range fields {
		require.LessOrEqual(t, n, mostFields, "%s has %d fields: split it by what belongs together", name, n)
	}
	for name, n := range methods {
		most := mostMethods
		if name == "ops.Ops" {
			most = 40
		}
		require.LessOrEqual(t, n, most, "%s has %d methods: split it by what belongs together", name, n)
	}
}

// What users import is small: the engine is in internal/engine. Of that, a newcomer reads the loop in one sitting: the rest is in its
// rooms.
func TestFacadesHaveFewFiles(t *testing.T) {
	t.Parallel()
	for dir, most := range map[string]int{"outbox": 12, "bus": 10, "consumelog": 3, "internal/engine": 3} {
		var files []string
		for _, path := range goFiles(t) {
			inside, err := filepath.Rel(root, path)
			require.NoError(t, err)
			if filepath.ToSlash(filepath.Dir(inside)) == dir && !strings.HasSuffix(path, "_test.go") {
				files = append(files, inside)
			}
		}
		require.NotEmpty(t, files, dir)
		require.LessOrEqual(t, len(files), most, "%s has %v", dir, files)
	}
}

// sizes counts the fields of structs, but for those that may have any number, and the methods of types.
func sizes(t *testing.T) (fields, methods map[string]int) {
	t.Helper()
	fields, methods = make(map[string]int), make(map[string]int)
	plain := make(map[string]bool)
	for _, path := range goFiles(t) {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		dir, err := filepath.Rel(root, filepath.Dir(path))
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if n.Recv != nil {
					methods[dir+"."+receiver(n)]++
				}
			case *ast.TypeSpec:
				if s, ok := n.Type.(*ast.StructType); ok {
					fields[dir+"."+n.Name.Name], plain[dir+"."+n.Name.Name] = s.Fields.NumFields(), isPlain(s)
				}
			}
			return true
		})
	}
	for name := range fields {
		isFilledByUsers := strings.HasSuffix(name, "Config") && !strings.Contains(name, "internal")
		if isFilledByUsers || (plain[name] && methods[name] == 0) {
			delete(fields, name)
		}
	}
	return fields, methods
}

func receiver(f *ast.FuncDecl) string {
	t := f.Recv.List[0].Type
	for {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
		case *ast.IndexExpr:
			t = x.X
		case *ast.IndexListExpr:
			t = x.X
		case *ast.Ident:
			return x.Name
		default:
			return ""
		}
	}
}

// isPlain tells whether a struct holds data only: no function, channel, lock, context, logger or database.
func isPlain(s *ast.StructType) bool {
	plain := true
	ast.Inspect(s, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncType, *ast.ChanType:
			plain = false
		case *ast.SelectorExpr:
			if pkg, ok := n.X.(*ast.Ident); ok {
				switch pkg.Name {
				case "sync", "atomic", "context", "slog", "trace", "metric", "rate", "sql", "bun":
					plain = false
				}
			}
		}
		return plain
	})
	return plain
}
