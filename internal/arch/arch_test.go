package arch_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/bluecone-go/bluecone"

// root is the project's folder.
const root = "../.."

// library are the packages that users import.
var library = []string{
	"bus", "outbox", "consumelog", "reaper", "consistency", "bustest", "migrations", "ops", "alert", "console", "schedule",
}

type goPackage struct {
	ImportPath string
	Imports    []string // by its code, without its tests
	Deps       []string // what these reach, too
}

func packages(t *testing.T, patterns ...string) map[string]goPackage {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list", "-deps", "-json=ImportPath,Imports,Deps"}, patterns...)...)
	cmd.Dir = root
	out, err := cmd.Output()
	require.NoError(t, err)
	found := make(map[string]goPackage)
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		err := d.Decode(&p)
		if errors.Is(err, io.EOF) {
			return found
		}
		require.NoError(t, err)
		found[p.ImportPath] = p
	}
}

func TestImportsRunOneWay(t *testing.T) {
	t.Parallel()
	above := map[string][]string{ // package → what it must never reach
		"consumelog": {"bus", "outbox", "bustest", "reaper", "consistency", "migrations", "ops", "console"},
		"bus": {
			"internal/engine", "internal/engine/delivery", "outbox", "consumelog", "bustest", "reaper", "consistency", "migrations", "ops",
			"console",
		},
		"outbox":      {"bustest", "reaper", "consistency", "migrations", "ops", "console"},
		"reaper":      {"bus", "outbox", "consumelog", "bustest", "consistency", "migrations", "ops", "console"},
		"consistency": {"bus", "outbox", "consumelog", "bustest", "reaper", "migrations", "ops", "console"},
		"migrations":  {"bus", "outbox", "consumelog", "bustest", "reaper", "consistency", "ops", "console"},
		"schedule":    {"bus", "outbox", "consumelog", "bustest", "reaper", "consistency", "migrations", "ops", "console"},
		"ops":         {"bustest", "reaper", "consistency", "console"},
		"console":     {"bustest", "reaper", "consistency"},

		"internal/handler": {"bus", "outbox", "consumelog", "internal/engine/delivery", "internal/engine/claim", "internal/engine/flow"},
		"internal/engine/claim": {
			"bus", "outbox", "consumelog", "internal/handler", "internal/engine", "internal/engine/delivery", "internal/engine/settle",
			"internal/engine/flow",
		},
		"internal/engine/registry": {
			"bus", "outbox", "consumelog", "internal/handler", "internal/engine/delivery", "internal/engine/claim",
			"internal/engine/flow",
		},
		"internal/engine": {"bus", "outbox", "consumelog"},
		"internal/engine/budget": {
			"bus", "outbox", "consumelog", "internal/engine/delivery", "internal/engine/claim", "internal/engine/settle",
			"internal/engine/health", "internal/engine/registry", "internal/engine/flow",
		},
		"internal/engine/health": {
			"bus", "outbox", "consumelog", "internal/engine/delivery", "internal/engine/claim", "internal/engine/settle",
			"internal/engine/registry", "internal/engine/flow",
		},
		"internal/engine/enroll": {
			"bus", "outbox", "consumelog", "internal/engine", "internal/engine/delivery", "internal/engine/claim", "internal/engine/settle",
			"internal/engine/flow", "internal/engine/upkeep", "internal/engine/backfill",
		},
		"internal/engine/upkeep": {
			"bus", "outbox", "consumelog", "internal/engine", "internal/engine/enroll", "internal/engine/backfill",
		},
		"internal/engine/backfill": {
			"bus", "outbox", "consumelog", "internal/engine", "internal/engine/enroll", "internal/engine/upkeep",
		},
		"internal/engine/settle":   {"bus", "outbox", "consumelog", "internal/engine", "internal/engine/delivery"},
		"internal/engine/delivery": {"bus", "outbox", "consumelog", "internal/engine"},
		"internal/engine/pulled":   {"bus", "outbox", "consumelog", "internal/engine", "internal/engine/delivery"},
		"internal/engine/remote":   {"bus", "outbox", "consumelog", "internal/engine", "internal/engine/delivery"},
		"internal/engine/flow": {
			"bus", "outbox", "consumelog", "internal/handler", "internal/store", "internal/engine/delivery",
			"internal/engine/claim",
		},
	}
	all := packages(t, "./...")
	for name := range above { // nobody imports the alerts but programs
		above[name] = append(above[name], "alert")
	}
	above["alert"] = []string{"bustest", "reaper", "consistency", "migrations", "doctor", "invariant", "ops"}
	for name, forbidden := range above {
		for _, f := range forbidden {
			require.NotContains(t, all[module+"/"+name].Deps, module+"/"+f, "%s must not reach %s", name, f)
		}
	}
	for path, p := range all {
		inside := strings.TrimPrefix(path, module+"/")
		if !strings.HasPrefix(path, module+"/") || strings.HasPrefix(inside, "demo/") {
			continue
		}
		require.False(t, slices.ContainsFunc(p.Deps, func(d string) bool {
			return strings.HasPrefix(d, module+"/demo")
		}), "%s must not reach the demo", inside)
	}
}

// Some rooms of the engine serve its loop alone: nobody else imports them.
func TestRoomsOfTheLoopServeNobodyElse(t *testing.T) {
	t.Parallel()
	const loop = module + "/internal/engine"
	all := packages(t, "./...")
	for _, room := range []string{"enroll", "upkeep", "backfill"} {
		room = loop + "/" + room
		require.Contains(t, all[loop].Imports, room)
		for path, p := range all {
			if path != loop {
				require.NotContains(t, p.Imports, room, "%s must not import it", path)
			}
		}
	}
}

// The modules beside the library show what a user can do: they use what is exported. Their tests may use the helpers.
// Adapters, relay and ledger may use internal/spi, which was made for them.
func TestOtherModulesUseNoInternalPackage(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{"adapter", "bench", "cmd", "console/browser", "dburl", "demo", "ledger", "relay"} {
		require.NoError(t, filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			inside, err := filepath.Rel(root, path)
			require.NoError(t, err)
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
			require.NoError(t, err)
			for _, i := range file.Imports {
				if slices.Contains([]string{"adapter", "ledger", "relay"}, dir) && i.Path.Value == `"`+module+`/internal/spi"` {
					continue // which is for them
				}
				require.NotContains(t, i.Path.Value, module+"/internal/", "%s", inside)
			}
			return nil
		}))
	}
}

func TestLibraryNeedsNoDriverBrokerOrSDK(t *testing.T) {
	t.Parallel()
	unwanted := []string{
		"github.com/go-sql-driver/", "github.com/jackc/", "modernc.org/sqlite", "go.opentelemetry.io/otel/sdk",
		"github.com/stretchr/", "github.com/knadh/", "github.com/prometheus/",
	}
	all := packages(t, "./...")
	for _, name := range library {
		for _, dep := range all[module+"/"+name].Deps {
			for _, u := range unwanted {
				require.False(t, strings.HasPrefix(dep, u), "%s reaches %s", name, dep)
			}
		}
	}
}

// goFiles lists the project's own Go files.
func goFiles(t *testing.T) []string {
	t.Helper()
	var files []string
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && slices.Contains([]string{"bench", "testdata", "ledgerv1"}, d.Name()) {
			return filepath.SkipDir // a module of its own, which nobody imports, and what is generated
		}
		if err == nil && !d.IsDir() && strings.HasSuffix(path, ".go") {
			files = append(files, path)
		}
		return err
	}))
	return files
}

func TestFilesAreSmall(t *testing.T) {
	t.Parallel()
	const limit = 400
	for _, path := range goFiles(t) {
		f, err := os.Open(path)
		require.NoError(t, err)
		lines := 0
		for s := bufio.NewScanner(f); s.Scan(); {
			lines++
		}
		require.NoError(t, f.Close())
		require.LessOrEqual(t, lines, limit, "%s has %d lines: split it by what is in it", path, lines)
	}
}

func TestNoGoFileInTheRoot(t *testing.T) {
	t.Parallel()
	found, err := filepath.Glob(filepath.Join(root, "*.go"))
	require.NoError(t, err)
	require.Empty(t, found)
}

func TestEveryExportedNameIsDocumented(t *testing.T) {
	t.Parallel()
	fset := token.NewFileSet()
	packageDoc := make(map[string]bool)
	for _, path := range goFiles(t) {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
		require.NoError(t, err)
		dir := filepath.Dir(path)
		packageDoc[dir] = packageDoc[dir] || file.Doc != nil
		for _, decl := range file.Decls {
			for _, name := range undocumented(decl) {
				t.Errorf("%s: %s has no comment", fset.Position(decl.Pos()), name)
			}
		}
	}
	for dir, documented := range packageDoc {
		require.True(t, documented, "package %s has no comment", dir)
	}
}

// Of what most programs use every field and every method of an interface has a comment, too: what it means, its unit, its default.
func TestEveryFieldIsDocumented(t *testing.T) {
	t.Parallel()
	fset, looked := token.NewFileSet(), 0
	for _, dir := range []string{"bus", "outbox", "consumelog"} {
		for _, path := range goFiles(t) {
			if filepath.Dir(path) != filepath.Join(root, dir) || strings.HasSuffix(path, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
			require.NoError(t, err)
			for _, of := range exportedTypes(file) {
				for _, f := range fieldsOf(of) {
					for _, name := range f.Names {
						if looked++; name.IsExported() {
							require.True(t, f.Doc != nil || f.Comment != nil, "%s: %s.%s has no comment", fset.Position(f.Pos()), of.Name.Name, name.Name)
						}
					}
				}
			}
		}
	}
	require.Greater(t, looked, 80, "the test looks at nothing")
}

func exportedTypes(file *ast.File) (found []*ast.TypeSpec) {
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.TypeSpec); ok && spec.Name.IsExported() {
			found = append(found, spec)
		}
		return true
	})
	return found
}

// fieldsOf are the fields of a struct, or the methods of an interface.
func fieldsOf(of *ast.TypeSpec) []*ast.Field {
	switch t := of.Type.(type) {
	case *ast.StructType:
		return t.Fields.List
	case *ast.InterfaceType:
		return t.Methods.List
	}
	return nil
}

// undocumented lists the exported names of a declaration that nothing explains.
func undocumented(decl ast.Decl) []string {
	var names []string
	switch d := decl.(type) {
	case *ast.FuncDecl:
		if d.Name.IsExported() && d.Doc == nil && !slices.Contains([]string{"Error", "Unwrap"}, d.Name.Name) {
			names = append(names, d.Name.Name)
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch s := spec.(type) {
			case *ast.TypeSpec:
				if s.Name.IsExported() && s.Doc == nil && d.Doc == nil {
					names = append(names, s.Name.Name)
				}
			case *ast.ValueSpec:
				for _, n := range s.Names {
					if n.IsExported() && s.Doc == nil && s.Comment == nil && d.Doc == nil {
						names = append(names, n.Name)
					}
				}
			}
		}
	}
	return names
}

// TestEveryConfigFieldSaysItsDefault holds for all structs whose name ends in Config.
func TestEveryConfigFieldSaysItsDefault(t *testing.T) {
	t.Parallel()
	fset := token.NewFileSet()
	for _, dir := range library {
		files, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
		require.NoError(t, err)
		for _, path := range files {
			file, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
			require.NoError(t, err)
			ast.Inspect(file, func(n ast.Node) bool {
				spec, ok := n.(*ast.TypeSpec)
				if !ok || !strings.HasSuffix(spec.Name.Name, "Config") {
					return true
				}
				if s, ok := spec.Type.(*ast.StructType); ok {
					for _, f := range s.Fields.List {
						require.Contains(t, f.Doc.Text(), "Default: ", "%s: %s.%s", path, spec.Name.Name, f.Names[0].Name)
					}
				}
				return true
			})
		}
	}
}
