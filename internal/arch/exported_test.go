package arch_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Users cannot name what is internal. So no function, method or field that they can reach has an internal type, promoted methods
// included, but for types that have an exported name beside.
func TestWhatUsersReachHasNoInternalType(t *testing.T) {
	t.Parallel()
	imports, looked := exports(t), 0
	for _, name := range append(slices.Clone(library), "doctor", "invariant") {
		pkg, err := imports.Import(module + "/" + name)
		require.NoError(t, err)
		named := make(map[types.Object]bool) // internal types with an exported name
		for _, n := range pkg.Scope().Names() {
			if alias, ok := pkg.Scope().Lookup(n).(*types.TypeName); ok && alias.Exported() && alias.IsAlias() {
				if is, ok := types.Unalias(alias.Type()).(*types.Named); ok {
					named[is.Obj()] = true
				}
			}
		}
		for what, typ := range reachable(pkg) {
			looked++
			for _, is := range internalTypes(typ) {
				require.True(t, named[is], "%s.%s has the type %s, which users cannot name", name, what, is.Type())
			}
		}
	}
	require.Greater(t, looked, 500, "the test looks at nothing")
}

// exports imports compiled packages.
func exports(t *testing.T) types.Importer {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-export", "-json=ImportPath,Export", "./...")
	cmd.Dir = root
	out, err := cmd.Output()
	require.NoError(t, err)
	files := make(map[string]string)
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct{ ImportPath, Export string }
		err := d.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		files[p.ImportPath] = p.Export
	}
	return importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) {
		f, err := os.Open(files[path])
		if err != nil {
			return nil, fmt.Errorf("export data of %s: %w", path, err)
		}
		return f, nil
	})
}

// reachable are the types of what users of a package can write, by name: constants, variables, functions, and what is in types.
func reachable(pkg *types.Package) map[string]types.Type {
	found := make(map[string]types.Type)
	for _, name := range pkg.Scope().Names() {
		o := pkg.Scope().Lookup(name)
		if !o.Exported() {
			continue
		}
		if _, ok := o.(*types.TypeName); !ok {
			found[name] = o.Type()
			continue
		}
		for _, in := range members(o.Type()) {
			found[name+"."+in.Name()] = in.Type()
		}
	}
	return found
}

// members are the exported fields and methods of a type, those that embedded ones promote included.
func members(t types.Type) (all []types.Object) {
	for _, of := range []types.Type{t, types.NewPointer(t)} { // the pointer to an interface has no methods
		for m := range types.NewMethodSet(of).Methods() {
			all = append(all, m.Obj())
		}
	}
	if s, ok := t.Underlying().(*types.Struct); ok {
		for f := range s.Fields() {
			all = append(all, f)
		}
	}
	return slices.DeleteFunc(all, func(o types.Object) bool { return !o.Exported() })
}

// internalTypes are the internal types of this module that a type names.
func internalTypes(t types.Type) (found []types.Object) {
	of := func(parts ...types.Type) {
		for _, p := range parts {
			found = append(found, internalTypes(p)...)
		}
	}
	switch t := types.Unalias(t).(type) {
	case *types.Named:
		if p := t.Obj().Pkg(); p != nil && strings.HasPrefix(p.Path(), module+"/internal/") {
			found = append(found, t.Obj())
		}
		for a := range t.TypeArgs().Types() {
			of(a)
		}
	case *types.Pointer:
		of(t.Elem())
	case *types.Slice:
		of(t.Elem())
	case *types.Array:
		of(t.Elem())
	case *types.Chan:
		of(t.Elem())
	case *types.Map:
		of(t.Key(), t.Elem())
	case *types.Signature:
		for v := range t.Params().Variables() {
			of(v.Type())
		}
		for v := range t.Results().Variables() {
			of(v.Type())
		}
	}
	return found
}
