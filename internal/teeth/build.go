package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// build tells which of the sabotages do not find the lines that they replace, or whose code does not compile.
func build(out io.Writer, all []sabotage) error {
	c, err := newCompiler(all)
	if err != nil {
		return err
	}
	bad := 0
	for _, s := range all {
		if err := c.check(s); err != nil {
			bad++
			_, _ = fmt.Fprintf(out, "%s: %v\n", s.name, err)
		}
	}
	if bad > 0 {
		return fmt.Errorf("%d of %d sabotages do not build", bad, len(all))
	}
	_, err = fmt.Fprintf(out, "all %d sabotages build\n", len(all))
	return err
}

// compiler checks the types of sabotaged packages: what go build would do takes a second for each of them.
type compiler struct {
	files    *token.FileSet
	packages map[string]listed // by their directories
	imports  types.Importer
}

// listed is a package, as go list prints it.
type listed struct {
	Dir, ImportPath, Export string
	GoFiles                 []string
}

func newCompiler(all []sabotage) (*compiler, error) {
	dirs := make(map[string]bool)
	for _, s := range all {
		for _, e := range s.edits() {
			dirs["./"+filepath.Dir(e.file)] = true
		}
	}
	args := append([]string{"list", "-export", "-deps", "-json=Dir,ImportPath,Export,GoFiles"}, slices.Sorted(maps.Keys(dirs))...)
	var problems strings.Builder
	cmd := exec.Command("go", args...) //nolint:noctx // it ends by itself
	cmd.Stderr = &problems
	list, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list the packages: %w\n%s", err, problems.String())
	}
	c := &compiler{files: token.NewFileSet(), packages: make(map[string]listed)}
	exports := make(map[string]string)
	for d := json.NewDecoder(strings.NewReader(string(list))); d.More(); {
		var p listed
		if err := d.Decode(&p); err != nil {
			return nil, err
		}
		c.packages[p.Dir], exports[p.ImportPath] = p, p.Export
	}
	c.imports = importer.ForCompiler(c.files, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	return c, nil
}

// check compiles each package that the sabotage changes.
func (c *compiler) check(s sabotage) error {
	dir, err := os.MkdirTemp("", "teeth")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	changed, err := s.change(dir)
	if err != nil {
		return err
	}
	done := make(map[string]bool)
	for file := range changed {
		if in := filepath.Dir(file); !done[in] {
			done[in] = true
			err = errors.Join(err, c.compile(c.packages[in], changed))
		}
	}
	return err
}

func (c *compiler) compile(p listed, changed map[string]string) error {
	var files []*ast.File
	for _, name := range p.GoFiles {
		path := filepath.Join(p.Dir, name)
		if instead, ok := changed[path]; ok {
			path = instead
		}
		f, err := parser.ParseFile(c.files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		files = append(files, f)
	}
	_, err := (&types.Config{Importer: c.imports}).Check(p.ImportPath, c.files, files, nil)
	return err
}
