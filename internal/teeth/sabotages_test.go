package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Every sabotage still finds the lines that it breaks, and its code compiles.
func TestSabotagesBuild(t *testing.T) {
	t.Chdir("../..")
	names := make(map[string]bool)
	for _, s := range sabotages() {
		assert.False(t, names[s.name], s.name)
		names[s.name] = true
	}
	var out strings.Builder
	require.NoError(t, build(&out, sabotages()), &out)
}

// The tests that a sabotage names exist in its packages.
func TestSabotagesNameTests(t *testing.T) {
	t.Chdir("../..")
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Example|Fuzz)\w*)\(`)
	for _, s := range sabotages() {
		names := regexp.MustCompile(s.tests)
		found := false
		for pkg := range strings.FieldsSeq(s.packages) {
			files, err := filepath.Glob(strings.TrimSuffix(pkg, "/...") + "/*_test.go")
			require.NoError(t, err)
			if strings.HasSuffix(pkg, "/...") {
				deeper, err := filepath.Glob(strings.TrimSuffix(pkg, "...") + "*/*_test.go")
				require.NoError(t, err)
				files = append(files, deeper...)
			}
			for _, file := range files {
				text, err := os.ReadFile(file)
				require.NoError(t, err)
				found = found || slices.ContainsFunc(declared.FindAllSubmatch(text, -1), func(m [][]byte) bool { return names.Match(m[1]) })
			}
		}
		assert.True(t, found, "%s: no test of %s matches %q", s.name, s.packages, s.tests)
	}
}

// A sabotage that does not build is told from one that does.
func TestBuildTellsWhatDoesNot(t *testing.T) {
	t.Chdir("../..")
	const file = "internal/teeth/table.go"
	compiler, err := newCompiler([]sabotage{{file: file}})
	require.NoError(t, err)
	const line = "len(cells) == columns {"
	for name, c := range map[string]struct{ old, new, says string }{
		"other lines":   {line + " ", line, file + " has the lines to replace 0 times, not once"},
		"no such thing": {line, "len(cells) == tail {", "undefined: tail"},
		"no code":       {line, "len(cells) = = {", "expected operand"},
	} {
		assert.ErrorContains(t, compiler.check(sabotage{file: file, old: c.old, new: c.new}), c.says, name)
	}
}
