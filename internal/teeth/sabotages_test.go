//go:build !race

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
	for _, s := range sabotages() {
		names := regexp.MustCompile(s.tests)
		found := slices.ContainsFunc(strings.Fields(s.packages), func(pkg string) bool {
			return slices.ContainsFunc(testsOf(t, pkg), names.MatchString)
		})
		assert.True(t, found, "%s: no test of %s matches %q", s.name, s.packages, s.tests)
	}
}

var declaresTest = regexp.MustCompile(`(?m)^func ((?:Test|Example|Fuzz)\w*)\(`)

// testsOf lists the tests of a package, or with "/..." those of what is in its folder.
func testsOf(t *testing.T, pkg string) (names []string) {
	t.Helper()
	dir, isTree := strings.CutSuffix(pkg, "/...")
	patterns := []string{dir + "/*_test.go"}
	if isTree {
		patterns = append(patterns, dir+"/*/*_test.go")
	}
	for _, pattern := range patterns {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			for _, m := range declaresTest.FindAllStringSubmatch(string(text), -1) {
				names = append(names, m[1])
			}
		}
	}
	return names
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
